#include "trainer_agent/serve/agent_service.h"

#include "common/base/text.h"
#include "common/rpc/status_mapping.h"
#include "common/telemetry/log.h"
#include "trainer_agent/serve/agent_protos.h"
#include "trainer_agent/serve/version_stream.h"

namespace lockstep::serve {
namespace {

void LogOpened(const PullRequest& request, const PullPlan& plan) {
  if (plan.pull_id == 0) return;  // up to date
  telemetry::Log(telemetry::LogLevel::kDebug, "pull_opened",
                 {{"model", request.model},
                  {"receiver", request.receiver},
                  {"pull", plan.pull_id},
                  {"mode", NameOf(plan.mode)},
                  {"held", request.held.version},
                  {"version", plan.target.version},
                  {"bytes", plan.payload_bytes},
                  {"lanes", plan.tickets.size()}});
}

}  // namespace

AgentService::AgentService(store::VersionCatalog* catalog, PullTable* pulls,
                           std::function<std::vector<PublishFacts>()> publish_facts, v1::BuildInfo build,
                           std::string lane_address, std::string local_socket, const telemetry::Timeline* timeline)
    : catalog_(catalog),
      pulls_(pulls),
      publish_facts_(std::move(publish_facts)),
      build_(std::move(build)),
      lane_address_(std::move(lane_address)),
      local_socket_(std::move(local_socket)),
      timeline_(timeline) {}

Result<std::shared_ptr<store::ServedRun>> AgentService::FindRun(const std::string& model) const {
  auto run = catalog_->Find(model);
  if (run != nullptr) return run;
  return Status(ErrorCode::kNotFound,
                Cat("model \"", model.substr(0, 128), "\" is not open here; start its trainer first"));
}

grpc::Status AgentService::GetStatus(grpc::ServerContext*, const v1::AgentStatusRequest*, v1::AgentStatus* status) {
  *status->mutable_build() = build_;
  status->set_draining(draining_);
  for (const PublishFacts& facts : publish_facts_()) FillModel(facts, status->add_models());
  return grpc::Status::OK;
}

void AgentService::FillModel(const PublishFacts& facts, v1::AgentModel* model) const {
  model->set_name(facts.model);
  model->set_run(ToBytes(facts.run));
  model->set_layout_digest(ToBytes(facts.layout->digest()));
  model->set_model_bytes(facts.layout->data_bytes());
  model->set_tensors(static_cast<uint32_t>(facts.layout->tensors().size()));
  model->set_block_bytes(facts.layout->block_bytes());
  model->set_ranks_expected(facts.ranks_expected);
  model->set_ranks_connected(facts.ranks_connected);
  model->set_writing_version(facts.writing_version);
  model->set_versions_committed(facts.versions_committed);
  model->set_versions_aborted(facts.versions_aborted);
  model->set_last_error(facts.last_error);
  model->set_open_pulls(static_cast<uint32_t>(pulls_->open_pulls(facts.model)));
  for (const ReceiverReport& report : pulls_->Reports(facts.model)) ToProto(report, model->add_receivers());
  const auto run = catalog_->Find(facts.model);
  if (run == nullptr) return;
  if (const auto newest = run->Newest()) {
    model->set_newest_version(newest->manifest->held.version);
    model->set_newest_digest(ToBytes(newest->manifest->digest));
  }
  uint64_t retained_bytes = 0;
  for (const auto& payload : run->deltas().Retained()) {
    ToProto(*payload, model->add_deltas());
    retained_bytes += payload->total_bytes();
  }
  model->set_retained_bytes(retained_bytes);
}

grpc::Status AgentService::GetLayout(grpc::ServerContext*, const v1::GetLayoutRequest* request, v1::Layout* layout) {
  const auto run = FindRun(request->model());
  if (!run.ok()) return rpc::ToGrpc(run.status());
  layout->set_digest(ToBytes((*run)->layout().digest()));
  layout->set_encoded(std::string(AsText((*run)->layout().encoded())));
  return grpc::Status::OK;
}

grpc::ServerWriteReactor<v1::VersionEvent>* AgentService::WatchVersions(grpc::CallbackServerContext*,
                                                                        const v1::WatchVersionsRequest* request) {
  return new VersionStream(catalog_, request->model());
}

grpc::Status AgentService::OpenPull(grpc::ServerContext*, const v1::OpenPullRequest* request, v1::PullPlan* plan) {
  if (draining_) return rpc::ToGrpc({ErrorCode::kUnavailable, "the agent is draining"});
  const auto wanted = FromProto(*request);
  if (!wanted.ok()) return rpc::ToGrpc(wanted.status());
  const auto planned = pulls_->Open(*wanted);
  if (!planned.ok()) return rpc::ToGrpc(planned.status());
  LogOpened(*wanted, *planned);
  ToProto(*planned, lane_address_, plan);
  if (!local_socket_.empty()) {
    plan->set_local_socket(local_socket_);
    plan->set_local_ticket(ToBytes(planned->local_ticket));
  }
  return grpc::Status::OK;
}

grpc::Status AgentService::OpenLive(grpc::ServerContext*, const v1::OpenLiveRequest* request, v1::LivePlan* plan) {
  if (draining_) return rpc::ToGrpc({ErrorCode::kUnavailable, "the agent is draining"});
  const auto wanted = FromProto(*request);
  if (!wanted.ok()) return rpc::ToGrpc(wanted.status());
  const auto opened = pulls_->OpenLive(*wanted);
  if (!opened.ok()) return rpc::ToGrpc(opened.status());
  telemetry::Log(telemetry::LogLevel::kDebug, "live_subscribed",
                 {{"model", wanted->model}, {"receiver", wanted->receiver}, {"pull", opened->pull_id}});
  plan->set_pull_id(opened->pull_id);
  plan->set_lane_address(lane_address_);
  for (const Ticket& ticket : opened->tickets) plan->add_tickets(ToBytes(ticket));
  return grpc::Status::OK;
}

grpc::Status AgentService::CatchUp(grpc::ServerContext*, const v1::CatchUpRequest* request, v1::PullPlan* plan) {
  const auto planned = pulls_->CatchUp(request->pull_id(), request->oldest_version());
  if (!planned.ok()) return rpc::ToGrpc(planned.status());
  ToProto(*planned, lane_address_, plan);
  return grpc::Status::OK;
}

grpc::Status AgentService::RenewTickets(grpc::ServerContext*, const v1::RenewTicketsRequest* request,
                                        v1::RenewTicketsResponse* response) {
  const auto tickets = pulls_->RenewTickets(request->pull_id(), request->lanes());
  if (!tickets.ok()) return rpc::ToGrpc(tickets.status());
  for (const Ticket& ticket : *tickets) response->add_tickets(ToBytes(ticket));
  return grpc::Status::OK;
}

grpc::Status AgentService::ClosePull(grpc::ServerContext*, const v1::ClosePullRequest* request,
                                     v1::ClosePullResponse*) {
  const auto held = FromProto(request->held());
  if (!held.ok()) return rpc::ToGrpc(held.status());
  pulls_->Close(request->pull_id(), *held, request->outcome());
  return grpc::Status::OK;
}

grpc::Status AgentService::GetManifest(grpc::ServerContext*, const v1::GetManifestRequest* request,
                                       v1::Manifest* manifest) {
  const auto run = FindRun(request->model());
  if (!run.ok()) return rpc::ToGrpc(run.status());
  std::shared_ptr<const model::Manifest> found;
  if (request->version() != 0) {
    found = (*run)->FindManifest(request->version());
  } else if (const auto newest = (*run)->Newest()) {
    found = newest->manifest;
  }
  if (found == nullptr) {
    return rpc::ToGrpc({ErrorCode::kNotFound, Cat("model ", request->model(), ": the manifest of version ",
                                                  request->version(), " is not held")});
  }
  ToProto(found->held, manifest->mutable_held());
  manifest->set_layout_digest(ToBytes((*run)->layout().digest()));
  manifest->set_digest(ToBytes(found->digest));
  manifest->mutable_block_hashes()->Assign(found->block_hashes.begin(), found->block_hashes.end());
  return grpc::Status::OK;
}

grpc::Status AgentService::Verify(grpc::ServerContext*, const v1::AgentVerifyRequest* request,
                                  v1::VerifyResult* result) {
  const auto run = FindRun(request->model());
  if (!run.ok()) return rpc::ToGrpc(run.status());
  const auto newest = (*run)->Newest();
  if (!newest)
    return rpc::ToGrpc({ErrorCode::kState, Cat("model ", request->model(), ": no version is committed yet")});
  const model::ModelLayout& layout = (*run)->layout();
  const model::Manifest& manifest = *newest->manifest;
  Bytes buffer(layout.block_bytes());
  std::vector<uint64_t> hashes;
  std::vector<BlockIndex> bad;
  for (BlockIndex block = 0; block < layout.block_count(); ++block) {
    const auto bytes = std::span(buffer).first(layout.block_range(block).bytes);
    const auto read = (*run)->ReadBlock(manifest.held.version, /*exact=*/true, block, bytes);
    if (!read.ok())
      return rpc::ToGrpc(read.status().WithContext("the trainer has written a newer version meanwhile; try again"));
    hashes.push_back(model::BlockHash(bytes));
    if (hashes.back() != manifest.block_hashes[block]) bad.push_back(block);
  }
  ToProto(manifest.held, result->mutable_held());
  result->set_recorded_digest(ToBytes(manifest.digest));
  result->set_computed_digest(ToBytes(model::ComputeManifestDigest(layout.digest(), hashes)));
  result->mutable_bad_blocks()->Assign(bad.begin(), bad.end());
  for (const std::string& tensor : model::TensorsInBlocks(layout, bad)) result->add_bad_tensors(tensor);
  return grpc::Status::OK;
}

grpc::Status AgentService::GetTimeline(grpc::ServerContext*, const v1::TimelineRequest* request,
                                       v1::TimelineSpans* spans) {
  spans->set_daemon("trainer_agent");
  telemetry::ReportTimeline(timeline_, *request, *spans);
  return grpc::Status::OK;
}

}  // namespace lockstep::serve
