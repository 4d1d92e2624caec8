#include "trainer_agent/serve/agent_service.h"

#include <array>

#include "common/base/text.h"
#include "common/changes/version_changes_proto.h"
#include "common/rpc/status_mapping.h"
#include "common/telemetry/log.h"
#include "trainer_agent/serve/agent_protos.h"
#include "trainer_agent/serve/served_wait.h"
#include "trainer_agent/serve/version_changes.h"
#include "trainer_agent/serve/version_stream.h"

namespace lockstep::serve {
namespace {

// A receiver has one, and a pull and a standing one at most, of either of which a quarter may be of one identity.
access::Quota::Limits StreamLimits(const PullLimits& pulls) {
  return {.all = 4 * pulls.max_pulls, .each = pulls.max_pulls};
}

// Of calls that wait for receivers: each keeps a thread.
constexpr access::Quota::Limits kWaits{.all = 64, .each = 16};

// Of models that are open, told to a receiver that wants another one.
constexpr int kMaxNamedModels = 32;

std::string_view NameOf(v1::PullMode mode) {
  constexpr std::array<std::string_view, v1::PullMode_ARRAYSIZE> kNames{"",      "up_to_date", "full",
                                                                        "delta", "chain",      "standing"};
  return kNames.at(mode);
}

void LogOpened(const PullRequest& request, const PullPlan& plan) {
  if (plan.pull_id == 0) return;  // up to date
  telemetry::Log(telemetry::LogLevel::kDebug, "pull_opened",
                 {{"model", request.model},
                  {"receiver", request.receiver},
                  {"peer", request.owner},
                  {"pull", plan.pull_id},
                  {"mode", NameOf(plan.mode)},
                  {"held", request.held.version},
                  {"version", plan.target.version},
                  {"bytes", plan.payload_bytes},
                  {"lanes", plan.tickets.size()}});
}

}  // namespace

AgentService::AgentService(access::AccessControl* access, run::VersionCatalog* catalog, run::Scrubber* scrubber,
                           PullTable* pulls, PublishSide publish, v1::BuildInfo build, LaneOffer lanes,
                           std::string local_socket, const telemetry::Timeline* timeline)
    : access_(access),
      gate_(v1::TrainerAgent::service_full_name(), access),
      streams_("version streams", StreamLimits(pulls->limits())),
      waits_("calls that wait", kWaits),
      catalog_(catalog),
      scrubber_(scrubber),
      pulls_(pulls),
      publish_(std::move(publish)),
      build_(std::move(build)),
      lanes_(std::move(lanes)),
      local_socket_(std::move(local_socket)),
      timeline_(timeline) {}

template <typename Request>
Result<access::Caller> AgentService::AdmitToPull(const grpc::ServerContext& context, std::string_view call,
                                                 const Request& request) {
  LS_ASSIGN_OR_RETURN(access::Caller caller, gate_.Admit(context, call, request));
  LS_ASSIGN_OR_RETURN(const auto run, pulls_->RunOf(request.pull_id(), caller.name));
  LS_RETURN_IF_ERROR(Still(context, call, run->model())());
  return caller;
}

std::function<Status()> AgentService::Still(const grpc::ServerContextBase& context, std::string_view call,
                                            const std::string& model) const {
  const std::string method = Cat(v1::TrainerAgent::service_full_name(), ".", call);
  return [access = access_, caller = access::IdentityOf(context), method, model] {
    return access->Check(caller, method, {.kind = access::Scope::Kind::kModel, .model = model});
  };
}

grpc::Status AgentService::GetStatus(grpc::ServerContext* context, const v1::AgentStatusRequest* request,
                                     v1::AgentStatus* status) {
  LS_GRPC_ASSIGN_OR_RETURN(const access::Caller caller, gate_.Admit(*context, __func__, *request));
  *status = Describe();
  return grpc::Status::OK;
}

v1::AgentStatus AgentService::Describe() const {
  v1::AgentStatus status;
  *status.mutable_build() = build_;
  status.set_draining(draining_);
  status.set_now_unix_ns(telemetry::UnixNanos());
  for (v1::AgentModel& model : publish_.models()) {
    FillModel(model);
    *status.add_models() = std::move(model);
  }
  AddUnopened(status);
  return status;
}

void AgentService::AddUnopened(v1::AgentStatus& status) const {
  for (const std::string& name : pulls_->reports().Models()) {
    if (catalog_->Find(name) != nullptr) continue;
    const std::vector<ReceiverReport> reports = pulls_->reports().Of(name);
    if (reports.empty()) continue;
    v1::UnopenedModel& model = *status.add_unopened();
    model.set_name(name);
    for (const ReceiverReport& report : reports) ToProto(report, model.add_receivers());
  }
}

// What is known on this side.
void AgentService::FillModel(v1::AgentModel& model) const {
  model.set_open_pulls(static_cast<uint32_t>(pulls_->open_pulls(model.name())));
  for (const ReceiverReport& report : pulls_->reports().Of(model.name())) ToProto(report, model.add_receivers());
  const auto run = catalog_->Find(model.name());
  if (run == nullptr) return;
  if (const auto newest = run->RequireNewest(); newest.ok()) {
    model.set_newest_version(newest->manifest->held.version);
    model.set_newest_digest(ToBytes(newest->manifest->digest));
    model.set_newest_committed_unix_ns(newest->committed_unix_ns);
    model.set_newest_label(newest->label);
    if (newest->changes != nullptr) {
      *model.mutable_newest_change() = changes::SumOf(*newest->changes);
      model.set_newest_unchanged_tensors(newest->changes->unchanged_tensors);
    }
  } else if (newest.status().code() == ErrorCode::kCorrupt) {
    model.set_last_error(newest.status().ToString());
    model.set_last_error_unix_ns(0);
  }
  uint64_t retained_bytes = 0;
  for (const auto& payload : run->deltas().Retained()) {
    ToProto(*payload, model.add_deltas());
    retained_bytes += payload->total_bytes();
  }
  model.set_retained_bytes(retained_bytes);
  model.set_pinned_bytes(run->deltas().DroppedBytes());
}

grpc::Status AgentService::GetLayout(grpc::ServerContext* context, const v1::GetLayoutRequest* request,
                                     v1::Layout* layout) {
  LS_GRPC_ASSIGN_OR_RETURN(const access::Caller caller, gate_.Admit(*context, __func__, *request));
  LS_GRPC_ASSIGN_OR_RETURN(const auto run, catalog_->FindOpen(request->model()));
  layout->set_digest(ToBytes(run->layout().digest()));
  layout->set_encoded(std::string(AsText(run->layout().encoded())));
  return grpc::Status::OK;
}

grpc::ServerWriteReactor<v1::VersionEvent>* AgentService::WatchVersions(grpc::CallbackServerContext* context,
                                                                        const v1::WatchVersionsRequest* request) {
  const Result<access::Caller> caller = gate_.Admit(*context, __func__, *request);
  if (!caller.ok()) return VersionStream::Start(catalog_, &pulls_->reports(), *request, "", caller.status());
  return VersionStream::Start(catalog_, &pulls_->reports(), *request, caller->name, streams_.Take(caller->name),
                              Still(*context, __func__, request->model()));
}

grpc::Status AgentService::OpenPull(grpc::ServerContext* context, const v1::OpenPullRequest* request,
                                    v1::PullPlan* plan) {
  LS_GRPC_ASSIGN_OR_RETURN(const access::Caller caller, gate_.Admit(*context, __func__, *request));
  if (draining_) return rpc::ToGrpc({ErrorCode::kUnavailable, "the agent is draining"});
  LS_GRPC_ASSIGN_OR_RETURN(PullRequest wanted, FromProto(*request, caller.name));
  wanted.allowed = Still(*context, __func__, request->model());
  LS_GRPC_ASSIGN_OR_RETURN(const PullPlan planned, pulls_->Open(wanted));
  LogOpened(wanted, planned);
  ToProto(planned, lanes_, plan);
  if (!local_socket_.empty() && !request->standing()) {
    plan->set_local_socket(local_socket_);
    plan->set_local_ticket(ToBytes(planned.local_ticket));
  }
  return grpc::Status::OK;
}

grpc::Status AgentService::CatchUp(grpc::ServerContext* context, const v1::CatchUpRequest* request,
                                   v1::PullPlan* plan) {
  LS_GRPC_ASSIGN_OR_RETURN(const access::Caller caller, AdmitToPull(*context, __func__, *request));
  LS_GRPC_ASSIGN_OR_RETURN(const PullPlan planned,
                           pulls_->CatchUp(request->pull_id(), request->oldest_version(), caller.name));
  ToProto(planned, lanes_, plan);
  return grpc::Status::OK;
}

grpc::Status AgentService::RenewTickets(grpc::ServerContext* context, const v1::RenewTicketsRequest* request,
                                        v1::RenewTicketsResponse* response) {
  LS_GRPC_ASSIGN_OR_RETURN(const access::Caller caller, AdmitToPull(*context, __func__, *request));
  LS_GRPC_ASSIGN_OR_RETURN(const auto tickets, pulls_->RenewTickets(request->pull_id(), request->lanes(), caller.name));
  for (const Ticket& ticket : tickets) response->add_tickets(ToBytes(ticket));
  return grpc::Status::OK;
}

grpc::Status AgentService::ClosePull(grpc::ServerContext* context, const v1::ClosePullRequest* request,
                                     v1::ClosePullResponse*) {
  LS_GRPC_ASSIGN_OR_RETURN(const access::Caller caller, gate_.Admit(*context, __func__, *request));
  LS_GRPC_ASSIGN_OR_RETURN(const VersionRef held, FromProto(request->held()));
  const std::string model = pulls_->Close(request->pull_id(), held, request->outcome(), caller.name);
  if (request->damaged() && !model.empty()) scrubber_->Suspect(model, caller.name);
  return grpc::Status::OK;
}

grpc::Status AgentService::GetManifest(grpc::ServerContext* context, const v1::GetManifestRequest* request,
                                       v1::Manifest* manifest) {
  LS_GRPC_ASSIGN_OR_RETURN(const access::Caller caller, gate_.Admit(*context, __func__, *request));
  LS_GRPC_ASSIGN_OR_RETURN(const auto run, catalog_->FindOpen(request->model()));
  const auto found = run->FindManifest(request->version());
  if (found == nullptr) {
    return rpc::ToGrpc({ErrorCode::kNotFound, Cat("model ", request->model(), ": the manifest of version ",
                                                  request->version(), " is not held")});
  }
  ToProto(found->held, manifest->mutable_held());
  manifest->set_layout_digest(ToBytes(run->layout().digest()));
  manifest->set_digest(ToBytes(found->digest));
  manifest->mutable_block_hashes()->Assign(found->block_hashes.begin(), found->block_hashes.end());
  return grpc::Status::OK;
}

grpc::Status AgentService::Verify(grpc::ServerContext* context, const v1::AgentVerifyRequest* request,
                                  v1::VerifyResult* result) {
  LS_GRPC_ASSIGN_OR_RETURN(const access::Caller caller, gate_.Admit(*context, __func__, *request));
  LS_GRPC_ASSIGN_OR_RETURN(const auto run, catalog_->FindOpen(request->model()));
  LS_GRPC_ASSIGN_OR_RETURN(const run::ServedVersion newest, run->RequireNewest());
  const model::ModelLayout& layout = run->layout();
  const model::Manifest& manifest = *newest.manifest;
  std::vector<uint64_t> hashes;
  const auto hash = [&](const model::Manifest&, ByteView bytes) { hashes.push_back(model::BlockHash(bytes)); };
  std::vector<BlockIndex> bad;
  for (BlockIndex block = 0; block < layout.block_count(); ++block) {
    const Status read = run->UseBlocks(manifest.held.version, /*exact=*/true, block, 1, hash);
    if (!read.ok())
      return rpc::ToGrpc(read.WithContext("the trainer has written a newer version meanwhile; try again"));
    if (hashes.back() != manifest.block_hashes[block]) bad.push_back(block);
  }
  if (!bad.empty()) scrubber_->Suspect(request->model(), "");  // what is seen here needs no witness
  ToProto(manifest.held, result->mutable_held());
  result->set_recorded_digest(ToBytes(manifest.digest));
  result->set_computed_digest(ToBytes(model::ComputeManifestDigest(layout.digest(), hashes)));
  result->mutable_bad_blocks()->Assign(bad.begin(), bad.end());
  for (const std::string& tensor : model::TensorsInBlocks(layout, bad)) result->add_bad_tensors(tensor);
  if (bad.empty()) {
    LS_GRPC_RETURN_IF_ERROR(publish_.derive_again(request->model(), manifest.held.version, result));
  }
  return grpc::Status::OK;
}

grpc::Status AgentService::DropModel(grpc::ServerContext* context, const v1::DropModelRequest* request,
                                     v1::DropModelResponse* response) {
  LS_GRPC_ASSIGN_OR_RETURN(const access::Caller caller, gate_.Admit(*context, __func__, *request));
  LS_GRPC_ASSIGN_OR_RETURN(*response, publish_.drop(request->model()));
  telemetry::Log(telemetry::LogLevel::kInfo, "model_dropped", {{"model", request->model()}, {"peer", caller.name}});
  return grpc::Status::OK;
}

grpc::Status AgentService::Report(grpc::ServerContext* context, const v1::ReportRequest* request,
                                  v1::ReportResponse* response) {
  LS_GRPC_ASSIGN_OR_RETURN(const access::Caller caller, gate_.Admit(*context, __func__, *request));
  LS_GRPC_ASSIGN_OR_RETURN(const VersionRef held, FromProto(request->held()));
  // A receiver that does not say of which run cannot be counted among those that serve it.
  v1::VersionRef serves;
  serves.set_run(request->served_run());
  serves.set_version(request->served_version());
  LS_GRPC_ASSIGN_OR_RETURN(const VersionRef served, FromProto(serves));
  std::vector<EngineReport> engines;
  for (const v1::EngineServed& engine : request->engines()) {
    LS_GRPC_ASSIGN_OR_RETURN(const VersionRef at, FromProto(engine.served()));
    engines.push_back({engine.name(), at, engine.last_error()});
  }
  LS_GRPC_RETURN_IF_ERROR(
      pulls_->reports().Report({request->model(), request->receiver(), caller.name, request->instance()}, held, served,
                               request->last_error(), std::move(engines)));
  response->set_open(catalog_->Find(request->model()) != nullptr);
  if (response->open()) return grpc::Status::OK;
  std::string open;
  for (const v1::AgentModel& model : publish_.models()) {
    if (response->models_size() == kMaxNamedModels) break;
    if (!gate_.AdmitsFor(*context, __func__, model.name())) continue;
    response->add_models(model.name());
    open += Cat(open.empty() ? "" : ", ", model.name());
  }
  if (const uint64_t times = unopened_.Count(request->model()); times > 0) {
    // Where nothing is open yet, it is too early to wonder.
    telemetry::Log(open.empty() ? telemetry::LogLevel::kInfo : telemetry::LogLevel::kWarn, "model_not_open",
                   {{"model", request->model()}, {"receiver", request->receiver()}, {"open", open}, {"times", times}});
  }
  return grpc::Status::OK;
}

grpc::Status AgentService::AwaitServed(grpc::ServerContext* context, const v1::AwaitServedRequest* request,
                                       v1::AwaitServedResponse* response) {
  LS_GRPC_ASSIGN_OR_RETURN(const access::Caller caller, gate_.Admit(*context, __func__, *request));
  LS_GRPC_ASSIGN_OR_RETURN(const access::Quota::Lease lease, waits_.Take(caller.name));
  LS_GRPC_ASSIGN_OR_RETURN(*response, serve::AwaitServed(*catalog_, pulls_->reports(), *request,
                                                         [context] { return context->IsCancelled(); }));
  return grpc::Status::OK;
}

grpc::Status AgentService::AwaitChanges(grpc::ServerContext* context, const v1::AwaitChangesRequest* request,
                                        v1::VersionChanges* response) {
  LS_GRPC_ASSIGN_OR_RETURN(const access::Caller caller, gate_.Admit(*context, __func__, *request));
  LS_GRPC_ASSIGN_OR_RETURN(const access::Quota::Lease lease, waits_.Take(caller.name));
  LS_GRPC_ASSIGN_OR_RETURN(*response,
                           serve::AwaitChanges(*catalog_, *request, [context] { return context->IsCancelled(); }));
  return grpc::Status::OK;
}

grpc::Status AgentService::GetTimeline(grpc::ServerContext* context, const v1::TimelineRequest* request,
                                       v1::TimelineSpans* spans) {
  LS_GRPC_ASSIGN_OR_RETURN(const access::Caller caller, gate_.Admit(*context, __func__, *request));
  spans->set_daemon("trainer_agent");
  telemetry::ReportTimeline(timeline_, *request, *spans);
  return grpc::Status::OK;
}

}  // namespace lockstep::serve
