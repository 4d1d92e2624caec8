// The TrainerAgent gRPC service over the store and the pull table.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "common/access/access.h"
#include "common/access/quota.h"
#include "common/telemetry/log_limit.h"
#include "common/telemetry/timeline.h"
#include "proto/lockstep/v1/agent.grpc.pb.h"
#include "trainer_agent/run/scrubber.h"
#include "trainer_agent/serve/pull_table.h"

namespace lockstep::serve {

// Thread-safe. A call takes a thread of gRPC's; only the one that lasts as long as its receiver, WatchVersions, is made
// of callbacks. A quota bounds the threads of AwaitServed, which answers within seconds.
class AgentService final : public v1::TrainerAgent::WithCallbackMethod_WatchVersions<v1::TrainerAgent::Service> {
 public:
  // The calls that the publish side answers.
  struct PublishSide {
    std::function<std::vector<v1::AgentModel>()> models;  // that are open, each with run, layout, ranks and versions
    std::function<Result<v1::DropModelResponse>(const std::string& model)> drop;
    // Compares a version of a derived model with its source. OK, and nothing is done, for other models.
    std::function<Status(const std::string& model, Version version, v1::VerifyResult* result)> derive_again;
  };

  // `access` decides which peer may call what. `lanes` and `local_socket` (empty: none) are what plans name. REQUIRES
  // access, catalog, scrubber, pulls and timeline to outlive this.
  AgentService(access::AccessControl* access, run::VersionCatalog* catalog, run::Scrubber* scrubber, PullTable* pulls,
               PublishSide publish, v1::BuildInfo build, LaneOffer lanes, std::string local_socket,
               const telemetry::Timeline* timeline);

  // Refuses to open pulls and streams from now on; status says so. Open streams end when the catalog closes.
  void StartDraining() { draining_ = true; }

  // Returns the answer to GetStatus.
  v1::AgentStatus Describe() const;

  grpc::Status GetStatus(grpc::ServerContext*, const v1::AgentStatusRequest*, v1::AgentStatus*) override;
  grpc::Status GetLayout(grpc::ServerContext*, const v1::GetLayoutRequest*, v1::Layout*) override;
  grpc::ServerWriteReactor<v1::VersionEvent>* WatchVersions(grpc::CallbackServerContext*,
                                                            const v1::WatchVersionsRequest*) override;
  grpc::Status OpenPull(grpc::ServerContext*, const v1::OpenPullRequest*, v1::PullPlan*) override;
  grpc::Status CatchUp(grpc::ServerContext*, const v1::CatchUpRequest*, v1::PullPlan*) override;
  grpc::Status RenewTickets(grpc::ServerContext*, const v1::RenewTicketsRequest*, v1::RenewTicketsResponse*) override;
  grpc::Status ClosePull(grpc::ServerContext*, const v1::ClosePullRequest*, v1::ClosePullResponse*) override;
  grpc::Status GetManifest(grpc::ServerContext*, const v1::GetManifestRequest*, v1::Manifest*) override;
  grpc::Status Verify(grpc::ServerContext*, const v1::AgentVerifyRequest*, v1::VerifyResult*) override;
  grpc::Status DropModel(grpc::ServerContext*, const v1::DropModelRequest*, v1::DropModelResponse*) override;
  grpc::Status Report(grpc::ServerContext*, const v1::ReportRequest*, v1::ReportResponse*) override;
  grpc::Status AwaitServed(grpc::ServerContext*, const v1::AwaitServedRequest*, v1::AwaitServedResponse*) override;
  grpc::Status AwaitChanges(grpc::ServerContext*, const v1::AwaitChangesRequest*, v1::VersionChanges*) override;
  grpc::Status GetTimeline(grpc::ServerContext*, const v1::TimelineRequest*, v1::TimelineSpans*) override;

 private:
  // The caller, if it may make this call, opened the pull, and may still have the pull's model.
  template <typename Request>
  Result<access::Caller> AdmitToPull(const grpc::ServerContext& context, std::string_view call, const Request& request);
  // Tells, also after the call, whether its caller may still make it for `model`.
  std::function<Status()> Still(const grpc::ServerContextBase& context, std::string_view call,
                                const std::string& model) const;
  void FillModel(v1::AgentModel& model) const;
  void AddUnopened(v1::AgentStatus& status) const;

  access::AccessControl* const access_;
  const access::Gate gate_;
  access::Quota streams_;
  access::Quota waits_;
  run::VersionCatalog* const catalog_;
  run::Scrubber* const scrubber_;
  PullTable* const pulls_;
  const PublishSide publish_;
  const v1::BuildInfo build_;
  const LaneOffer lanes_;
  const std::string local_socket_;
  const telemetry::Timeline* const timeline_;
  telemetry::LogLimit unopened_;
  std::atomic<bool> draining_{false};
};

}  // namespace lockstep::serve
