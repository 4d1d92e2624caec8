// The receiver's gRPC control plane: calls become calls of the model's session.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "common/access/access.h"
#include "common/access/quota.h"
#include "common/telemetry/timeline.h"
#include "common/versionlog/keys.h"
#include "proto/lockstep/v1/receiver.grpc.pb.h"
#include "raas_receiver/session/session.h"

namespace lockstep::receiver {

// Thread-safe, as gRPC calls it.
class ReceiverService final : public v1::RaasReceiver::Service {
 public:
  using Sessions = std::map<std::string, std::unique_ptr<session::Session>>;  // by model

  // `instance`: 16 bytes, of this process. `access` decides which peer may call what; it, `sessions`, `feed` and
  // `timeline` outlive the service. The map does not change.
  // `key` signs receipts; nothing: they are not signed.
  ReceiverService(std::string name, std::string instance, access::AccessControl* access, const Sessions& sessions,
                  session::SyncFeed& feed, const telemetry::Timeline& timeline,
                  std::optional<versionlog::SigningKey> key);

  // Makes status say that the receiver drains.
  void SetDraining() { draining_ = true; }

  // Returns the answer to GetStatus.
  v1::ReceiverStatus Describe() const;

  grpc::Status GetStatus(grpc::ServerContext* context, const v1::ReceiverStatusRequest* request,
                         v1::ReceiverStatus* response) override;
  grpc::Status Pull(grpc::ServerContext* context, const v1::PullRequest* request, v1::SyncRecord* response) override;
  grpc::Status WatchSyncs(grpc::ServerContext* context, const v1::WatchSyncsRequest* request,
                          grpc::ServerWriter<v1::SyncRecord>* writer) override;
  grpc::Status Rollback(grpc::ServerContext* context, const v1::RollbackRequest* request,
                        v1::ReceiverModel* response) override;
  grpc::Status Verify(grpc::ServerContext* context, const v1::ReceiverVerifyRequest* request,
                      v1::VerifyResult* response) override;
  grpc::Status GetReceiverLayout(grpc::ServerContext* context, const v1::GetReceiverLayoutRequest* request,
                                 v1::Layout* response) override;
  grpc::Status GetReceipts(grpc::ServerContext* context, const v1::GetReceiptsRequest* request,
                           v1::Receipts* response) override;
  grpc::Status GetTimeline(grpc::ServerContext* context, const v1::TimelineRequest* request,
                           v1::TimelineSpans* response) override;

 private:
  Result<session::Session*> Find(const std::string& model) const;

  const std::string name_;
  const std::string instance_;
  const access::Gate gate_;
  access::Quota watchers_;
  const Sessions& sessions_;
  session::SyncFeed& feed_;
  const telemetry::Timeline& timeline_;
  const std::optional<versionlog::SigningKey> key_;
  std::atomic<bool> draining_ = false;
};

}  // namespace lockstep::receiver
