#include "trainer_agent/serve/agent_service.h"

#include "common/base/text.h"
#include "common/rpc/status_mapping.h"
#include "trainer_agent/serve/version_stream.h"

namespace lockstep {
namespace {

void ToProto(const Held& held, v1::Held* out) {
  out->set_run(ToBytes(held.run));
  out->set_version(held.version);
}

// An empty id, as protos leave it when nobody set it, is the zero one.
template <typename Id>
Result<Id> FromProtoId(const std::string& bytes) {
  if (bytes.empty()) return Id{};
  const auto raw = Bytes16(bytes);
  if (!raw.ok()) return Status(ErrorCode::kBadData, raw.status().message());
  return Id{*raw};
}

Result<Held> FromProto(const v1::Held& held) {
  LS_ASSIGN_OR_RETURN(const auto run, FromProtoId<RunId>(held.run()));
  return Held{run, held.version()};
}

Result<PullWish> FromProto(const v1::OpenPullRequest& request) {
  PullWish wish{.model = request.model(),
                .receiver = request.receiver(),
                .lanes = request.lanes_wanted(),
                .force_full = request.force_full(),
                .link_bytes_per_s = request.link_bytes_per_s()};
  LS_ASSIGN_OR_RETURN(wish.held, FromProto(request.held()));
  LS_ASSIGN_OR_RETURN(wish.held_digest, FromProtoId<ManifestDigest>(request.held_digest()));
  LS_ASSIGN_OR_RETURN(wish.layout, FromProtoId<LayoutDigest>(request.layout_digest()));
  return wish;
}

static_assert(static_cast<int>(v1::CODEC_LEVEL_FAST) == static_cast<int>(CodecLevel::kFast));
static_assert(static_cast<int>(v1::CODEC_LEVEL_COMPACT) == static_cast<int>(CodecLevel::kCompact));

v1::PullMode ToProto(PlanMode mode) {
  switch (mode) {
    case PlanMode::kUpToDate:
      return v1::PULL_MODE_UP_TO_DATE;
    case PlanMode::kFull:
      return v1::PULL_MODE_FULL;
    case PlanMode::kDelta:
      return v1::PULL_MODE_DELTA;
    case PlanMode::kChain:
      return v1::PULL_MODE_CHAIN;
    case PlanMode::kFolded:
      return v1::PULL_MODE_FOLDED;
  }
  return v1::PULL_MODE_UNSPECIFIED;
}

void ToProto(const Plan& plan, const std::string& lane_address, v1::PullPlan* out) {
  out->set_pull_id(plan.pull_id);
  out->set_mode(ToProto(plan.mode));
  ToProto(plan.base, out->mutable_base());
  ToProto(plan.target, out->mutable_target());
  out->set_target_digest(ToBytes(plan.target_digest));
  out->set_committed_unix_ns(plan.committed_unix_ns);
  out->set_payload_bytes(plan.payload_bytes);
  out->set_lane_address(lane_address);
  if (!plan.steps.empty()) out->set_level(static_cast<v1::CodecLevel>(plan.level));
  for (const Ticket& ticket : plan.tickets) out->add_tickets(ToBytes(ticket));
  uint64_t changed_elements = 0;
  for (const PlannedStep& planned : plan.steps) {
    const PayloadHeader& header = planned.payload->header();
    v1::DeltaStep* step = out->add_steps();
    step->set_payload_id(planned.payload_id);
    step->set_base(header.base);
    step->set_target(header.target);
    step->set_target_digest(ToBytes(header.target_digest));
    step->set_entries(header.entries);
    step->set_data_bytes(header.data_bytes);
    step->set_changed_elements(header.changed_elements);
    changed_elements += header.changed_elements;
  }
  out->set_changed_elements(changed_elements);
}

void ToProto(const Payload& payload, v1::RetainedDelta* out) {
  const PayloadHeader& header = payload.header();
  out->set_base(header.base);
  out->set_target(header.target);
  out->set_payload_bytes(header.data_bytes);
  out->set_changed_elements(header.changed_elements);
  out->set_changed_blocks(header.entries);
  out->set_folded(header.steps_folded > 1);
}

void ToProto(const ReceiverReport& report, v1::ReceiverState* out) {
  out->set_receiver(report.receiver);
  ToProto(report.held, out->mutable_held());
  out->set_last_outcome(report.outcome);
  const auto ago = std::chrono::steady_clock::now() - report.at;
  out->set_seconds_ago(static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(ago).count()));
}

}  // namespace

AgentService::AgentService(VersionCatalog* catalog, PullTable* pulls,
                           std::function<std::vector<PublishFacts>()> publish_facts, v1::BuildInfo build,
                           std::string lane_address, std::string local_socket, const Timeline* timeline)
    : catalog_(catalog),
      pulls_(pulls),
      publish_facts_(std::move(publish_facts)),
      build_(std::move(build)),
      lane_address_(std::move(lane_address)),
      local_socket_(std::move(local_socket)),
      timeline_(timeline) {}

Result<std::shared_ptr<ServedRun>> AgentService::FindRun(const std::string& model) const {
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
  if (!run.ok()) return ToGrpc(run.status());
  layout->set_digest(ToBytes((*run)->layout().digest()));
  layout->set_encoded(std::string(AsText((*run)->layout().encoded())));
  return grpc::Status::OK;
}

grpc::ServerWriteReactor<v1::VersionEvent>* AgentService::WatchVersions(grpc::CallbackServerContext*,
                                                                        const v1::WatchVersionsRequest* request) {
  return new VersionStream(catalog_, request->model());
}

grpc::Status AgentService::OpenPull(grpc::ServerContext*, const v1::OpenPullRequest* request, v1::PullPlan* plan) {
  if (draining_) return ToGrpc({ErrorCode::kUnavailable, "the agent is draining"});
  const auto wish = FromProto(*request);
  if (!wish.ok()) return ToGrpc(wish.status());
  const auto planned = pulls_->Open(*wish);
  if (!planned.ok()) return ToGrpc(planned.status());
  ToProto(*planned, lane_address_, plan);
  if (!local_socket_.empty()) {
    plan->set_local_socket(local_socket_);
    plan->set_local_ticket(ToBytes(planned->local_ticket));
  }
  return grpc::Status::OK;
}

grpc::Status AgentService::OpenLive(grpc::ServerContext*, const v1::OpenLiveRequest* request, v1::LivePlan* plan) {
  if (draining_) return ToGrpc({ErrorCode::kUnavailable, "the agent is draining"});
  const auto layout = FromProtoId<LayoutDigest>(request->layout_digest());
  if (!layout.ok()) return ToGrpc(layout.status());
  const auto opened = pulls_->OpenLive({.model = request->model(),
                                        .receiver = request->receiver(),
                                        .layout = *layout,
                                        .lanes = request->lanes_wanted(),
                                        .link_bytes_per_s = request->link_bytes_per_s()});
  if (!opened.ok()) return ToGrpc(opened.status());
  plan->set_pull_id(opened->pull_id);
  plan->set_lane_address(lane_address_);
  for (const Ticket& ticket : opened->tickets) plan->add_tickets(ToBytes(ticket));
  return grpc::Status::OK;
}

grpc::Status AgentService::CatchUp(grpc::ServerContext*, const v1::CatchUpRequest* request, v1::PullPlan* plan) {
  const auto planned = pulls_->CatchUp(request->pull_id(), request->oldest_version());
  if (!planned.ok()) return ToGrpc(planned.status());
  ToProto(*planned, lane_address_, plan);
  return grpc::Status::OK;
}

grpc::Status AgentService::RenewTickets(grpc::ServerContext*, const v1::RenewTicketsRequest* request,
                                        v1::RenewTicketsResponse* response) {
  const auto tickets = pulls_->RenewTickets(request->pull_id(), request->lanes());
  if (!tickets.ok()) return ToGrpc(tickets.status());
  for (const Ticket& ticket : *tickets) response->add_tickets(ToBytes(ticket));
  return grpc::Status::OK;
}

grpc::Status AgentService::ClosePull(grpc::ServerContext*, const v1::ClosePullRequest* request,
                                     v1::ClosePullResponse*) {
  const auto held = FromProto(request->held());
  if (!held.ok()) return ToGrpc(held.status());
  pulls_->Close(request->pull_id(), *held, request->outcome());
  return grpc::Status::OK;
}

grpc::Status AgentService::GetManifest(grpc::ServerContext*, const v1::GetManifestRequest* request,
                                       v1::Manifest* manifest) {
  const auto run = FindRun(request->model());
  if (!run.ok()) return ToGrpc(run.status());
  std::shared_ptr<const Manifest> found;
  if (request->version() != 0) {
    found = (*run)->FindManifest(request->version());
  } else if (const auto newest = (*run)->Newest()) {
    found = newest->manifest;
  }
  if (found == nullptr) {
    return ToGrpc({ErrorCode::kNotFound,
                   Cat("model ", request->model(), ": the manifest of version ", request->version(), " is not held")});
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
  if (!run.ok()) return ToGrpc(run.status());
  const auto newest = (*run)->Newest();
  if (!newest) return ToGrpc({ErrorCode::kState, Cat("model ", request->model(), ": no version is committed yet")});
  const ModelLayout& layout = (*run)->layout();
  const Manifest& manifest = *newest->manifest;
  Bytes buffer(layout.block_bytes());
  std::vector<uint64_t> hashes;
  std::vector<BlockIndex> bad;
  for (BlockIndex block = 0; block < layout.block_count(); ++block) {
    const auto bytes = std::span(buffer).first(layout.block_range(block).bytes);
    const auto read = (*run)->ReadBlock(manifest.held.version, /*exact=*/true, block, bytes);
    if (!read.ok()) return ToGrpc(read.status().WithContext("the trainer has moved on while verifying; try again"));
    hashes.push_back(BlockHash(bytes));
    if (hashes.back() != manifest.block_hashes[block]) bad.push_back(block);
  }
  ToProto(manifest.held, result->mutable_held());
  result->set_recorded_digest(ToBytes(manifest.digest));
  result->set_computed_digest(ToBytes(ComputeManifestDigest(layout.digest(), hashes)));
  result->mutable_bad_blocks()->Assign(bad.begin(), bad.end());
  for (const std::string& tensor : TensorsInBlocks(layout, bad)) result->add_bad_tensors(tensor);
  return grpc::Status::OK;
}

grpc::Status AgentService::GetTimeline(grpc::ServerContext*, const v1::TimelineRequest* request,
                                       v1::TimelineSpans* spans) {
  spans->set_daemon("trainer_agent");
  ReportTimeline(timeline_, *request, *spans);
  return grpc::Status::OK;
}

}  // namespace lockstep
