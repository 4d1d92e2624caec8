#include "raas_receiver/receiver/receiver_service.h"

#include "common/base/text.h"
#include "common/base/version.h"
#include "common/payload/payload.h"
#include "common/peer/peer.h"
#include "common/rpc/status_mapping.h"
#include "common/telemetry/build_info.h"
#include "common/wire/frame.h"
#include "raas_receiver/origin/version_ref_proto.h"

namespace lockstep::receiver {
namespace {

constexpr std::chrono::milliseconds kDefaultPullTimeout = std::chrono::minutes(10);
// Each has a thread.
constexpr access::Quota::Limits kWatchers{.all = 64, .each = 16};
// How often a stream looks whether its caller has gone.
constexpr std::chrono::milliseconds kCallerPoll{200};

v1::VerifyResult ToProto(const replica::VerifyReport& report) {
  v1::VerifyResult result;
  *result.mutable_held() = origin::ToProto(report.held);
  result.set_recorded_digest(ToBytes(report.recorded));
  result.set_computed_digest(ToBytes(report.computed));
  for (const ManifestDigest& part : report.parts) result.add_part_digests(ToBytes(part));
  result.mutable_bad_blocks()->Add(report.bad_blocks.begin(), report.bad_blocks.end());
  for (const std::string& tensor : report.bad_tensors) result.add_bad_tensors(tensor);
  return result;
}

}  // namespace

ReceiverService::ReceiverService(std::string name, std::string instance, access::AccessControl* access,
                                 const Sessions& sessions, session::SyncFeed& feed, const telemetry::Timeline& timeline,
                                 std::optional<versionlog::SigningKey> key)
    : name_(std::move(name)),
      instance_(std::move(instance)),
      gate_(v1::RaasReceiver::service_full_name(), access),
      watchers_("streams of syncs", kWatchers),
      sessions_(sessions),
      feed_(feed),
      timeline_(timeline),
      key_(std::move(key)) {}

Result<session::Session*> ReceiverService::Find(const std::string& model) const {
  const auto found = sessions_.find(model);
  if (found != sessions_.end()) return found->second.get();
  return Status(ErrorCode::kNotFound, Cat("receiver ", name_, " does not follow a model named \"", model, "\""));
}

grpc::Status ReceiverService::GetStatus(grpc::ServerContext* context, const v1::ReceiverStatusRequest* request,
                                        v1::ReceiverStatus* response) {
  LS_GRPC_ASSIGN_OR_RETURN(const access::Caller caller, gate_.Admit(*context, __func__, *request));
  *response = Describe();
  return grpc::Status::OK;
}

v1::ReceiverStatus ReceiverService::Describe() const {
  v1::ReceiverStatus status;
  v1::BuildInfo& build = *status.mutable_build();
  build.set_version(std::string(kVersion));
  build.set_revision(std::string(telemetry::BuildRevision()));
  build.set_wire_format(wire::kWireFormat);
  build.set_payload_format(payload::kPayloadFormat);
  build.set_peer(peer::SelfLine("raas_receiver"));
  status.set_name(name_);
  status.set_draining(draining_);
  status.set_instance(instance_);
  status.set_now_unix_ns(telemetry::UnixNanos());
  for (const auto& [model, session] : sessions_) *status.add_models() = session->Describe();
  return status;
}

grpc::Status ReceiverService::Pull(grpc::ServerContext* context, const v1::PullRequest* request,
                                   v1::SyncRecord* response) {
  LS_GRPC_ASSIGN_OR_RETURN(const access::Caller caller, gate_.Admit(*context, __func__, *request));
  LS_GRPC_ASSIGN_OR_RETURN(session::Session* const session, Find(request->model()));
  const auto timeout =
      request->timeout_ms() > 0 ? std::chrono::milliseconds(request->timeout_ms()) : kDefaultPullTimeout;
  const auto cancelled = [context] { return context->IsCancelled(); };
  LS_GRPC_ASSIGN_OR_RETURN(*response, session->Pull(request->force_full(), timeout, cancelled));
  return grpc::Status::OK;
}

grpc::Status ReceiverService::WatchSyncs(grpc::ServerContext* context, const v1::WatchSyncsRequest* request,
                                         grpc::ServerWriter<v1::SyncRecord>* writer) {
  LS_GRPC_ASSIGN_OR_RETURN(const access::Caller caller, gate_.Admit(*context, __func__, *request));
  LS_GRPC_ASSIGN_OR_RETURN(const access::Quota::Lease lease, watchers_.Take(caller.name));
  if (!request->model().empty()) {
    const Result<session::Session*> session = Find(request->model());
    if (!session.ok()) return rpc::ToGrpc(session.status());
  }
  const auto subscription = feed_.Subscribe(request->model());
  while (!context->IsCancelled() && !subscription->closed()) {
    v1::SyncRecord record;
    if (subscription->Next(kCallerPoll, record) && !writer->Write(record)) break;
  }
  return grpc::Status::OK;
}

grpc::Status ReceiverService::Rollback(grpc::ServerContext* context, const v1::RollbackRequest* request,
                                       v1::ReceiverModel* response) {
  LS_GRPC_ASSIGN_OR_RETURN(const access::Caller caller, gate_.Admit(*context, __func__, *request));
  LS_GRPC_ASSIGN_OR_RETURN(session::Session* const session, Find(request->model()));
  LS_GRPC_ASSIGN_OR_RETURN(*response, session->Rollback(*request, [context] { return context->IsCancelled(); }));
  return grpc::Status::OK;
}

grpc::Status ReceiverService::Verify(grpc::ServerContext* context, const v1::ReceiverVerifyRequest* request,
                                     v1::VerifyResult* response) {
  LS_GRPC_ASSIGN_OR_RETURN(const access::Caller caller, gate_.Admit(*context, __func__, *request));
  LS_GRPC_ASSIGN_OR_RETURN(session::Session* const session, Find(request->model()));
  LS_GRPC_ASSIGN_OR_RETURN(const replica::VerifyReport report, session->Verify());
  *response = ToProto(report);
  const Result<size_t> engines = session->VerifyEngines([context] { return context->IsCancelled(); });
  if (engines.ok()) {
    response->set_engines(static_cast<uint32_t>(*engines));
  } else {
    response->set_engine_error(engines.status().ToString());
  }
  session->engines().DescribeUncompared(*response);
  const v1::ReceiverModel model = session->Describe();
  for (const v1::RankGroup& group : model.rank_groups()) {
    if (group.unused() <= response->unused()) continue;
    response->set_unused(group.unused());
    *response->mutable_unused_tensors() = group.unused_tensors();
  }
  return grpc::Status::OK;
}

grpc::Status ReceiverService::GetReceiverLayout(grpc::ServerContext* context,
                                                const v1::GetReceiverLayoutRequest* request, v1::Layout* response) {
  LS_GRPC_ASSIGN_OR_RETURN(const access::Caller caller, gate_.Admit(*context, __func__, *request));
  LS_GRPC_ASSIGN_OR_RETURN(session::Session* const session, Find(request->model()));
  LS_GRPC_ASSIGN_OR_RETURN(const auto layout, session->layout());
  response->set_digest(ToBytes(layout->digest()));
  response->set_encoded(std::string(AsText(layout->encoded())));
  return grpc::Status::OK;
}

grpc::Status ReceiverService::GetReceipts(grpc::ServerContext* context, const v1::GetReceiptsRequest* request,
                                          v1::Receipts* response) {
  LS_GRPC_ASSIGN_OR_RETURN(const access::Caller caller, gate_.Admit(*context, __func__, *request));
  LS_GRPC_ASSIGN_OR_RETURN(session::Session* const session, Find(request->model()));
  for (const v1::Receipt& receipt : session->Receipts(*request)) {
    v1::SignedReceipt& one = *response->add_receipts();
    one.set_receipt(receipt.SerializeAsString());
    if (!key_) continue;
    *one.add_signatures() = key_->Sign(AsBytes(std::string_view(one.receipt())), versionlog::Signed::kReceipt);
  }
  return grpc::Status::OK;
}

grpc::Status ReceiverService::GetTimeline(grpc::ServerContext* context, const v1::TimelineRequest* request,
                                          v1::TimelineSpans* response) {
  LS_GRPC_ASSIGN_OR_RETURN(const access::Caller caller, gate_.Admit(*context, __func__, *request));
  response->set_daemon("raas_receiver");
  response->set_name(name_);
  telemetry::ReportTimeline(&timeline_, *request, *response);
  return grpc::Status::OK;
}

}  // namespace lockstep::receiver
