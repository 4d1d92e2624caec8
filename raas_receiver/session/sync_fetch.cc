// Where the bytes of a sync come from: the agent's memory on this host, what came live, and lanes for the rest.
#include <utility>

#include "common/telemetry/log.h"
#include "raas_receiver/session/sync.h"

namespace lockstep {
namespace {

constexpr uint64_t kRequestBytes = 1 << 20;  // what one lane holds while others could do it

// The blocks as runs of neighbours.
std::vector<BlockRun> RunsOf(const std::vector<BlockIndex>& blocks, const BlockRun& like, uint32_t most) {
  std::vector<BlockRun> runs;
  for (const BlockIndex block : blocks) {
    if (runs.empty() || runs.back().end() != block || runs.back().count == most) {
      runs.push_back(like);
      runs.back().first = block;
      runs.back().count = 0;
    }
    ++runs.back().count;
  }
  return runs;
}

}  // namespace

// The plan's local path, when it leads somewhere from here.
void Sync::OpenLocal() {
  if (plan_.local_socket.empty()) return;
  auto source = LocalSource::Connect(
      {.path = plan_.local_socket, .pull_id = plan_.pull_id, .ticket = plan_.local_ticket, .layout = order_.layout},
      context_.replicas.pool());
  if (!source.ok()) {
    Log(LogLevel::kDebug, "no_local_path", {{"model", context_.model}, {"message", source.status().ToString()}});
    return;
  }
  std::lock_guard lock(mutex_);
  if (!cancelled_) local_ = *std::move(source);
  beside_agent_ = local_ != nullptr;
}

Status Sync::OpenLanes() {
  LaneOptions options{
      .agent = plan_.lanes.agent, .pull_id = plan_.pull_id, .layout = order_.layout, .tickets = plan_.lanes.tickets};
  RenewTickets renew = [this](size_t lanes) { return context_.agent.RenewTickets(plan_.pull_id, lanes); };
  std::lock_guard lock(mutex_);
  if (cancelled_) return {ErrorCode::kCancelled, "the receiver stops"};
  lanes_ = std::make_unique<LaneSet>(context_.io, std::move(options), std::move(renew));
  return OkStatus();
}

// The plan's steps into chain_, which starts at `base`.
Status Sync::FetchDeltas(const Held& base, const ManifestDigest& base_digest) {
  deltas_ = std::make_unique<DeltaStaging>(*order_.layout, plan_.steps);
  if (local_) {
    TakeLocal(base.run);
  } else if (plan_.steps.size() == 1) {
    TakeLive(base);
  }
  CountBytes();
  LS_RETURN_IF_ERROR(FetchByLanes(deltas_->Runs(kRequestBytes, plan_.lanes.tickets.size()), *deltas_));
  const SpanScope span(context_.timeline, SpanOf("stage"));
  LS_ASSIGN_OR_RETURN(chain_, deltas_->Assemble(base, base_digest, plan_.committed_unix_ns));
  return OkStatus();
}

// The steps that the agent's memory has.
void Sync::TakeLocal(const RunId& run) {
  for (const PlanStep& step : plan_.steps) {
    const uint64_t bytes = sizeof(PayloadHeader) + step.entries * sizeof(PayloadEntry) + step.data_bytes;
    const Result<std::shared_ptr<const Payload>> payload = local_->ReadPayload(step.payload_id, bytes);
    const Status given = payload.ok() ? deltas_->Give(step.payload_id, run, *payload) : payload.status();
    if (given.ok()) continue;
    Log(LogLevel::kDebug, "delta_by_lanes", {{"model", context_.model}, {"message", given.ToString()}});
  }
}

// The one step, when its blocks were sent while it was made.
void Sync::TakeLive(const Held& base) {
  const PlanStep& step = plan_.steps[0];
  auto blocks = context_.live.Take(base, step);
  if (!blocks) return;
  if (const Status given = deltas_->GiveBlocks(step.payload_id, *std::move(blocks)); given.ok()) {
    live_bytes_ = step.data_bytes;
  } else {
    Log(LogLevel::kDebug, "delta_by_lanes", {{"model", context_.model}, {"message", given.ToString()}});
    context_.live.Close();  // coded at another level than this link is worth by now: the next subscription tells
  }
}

// `blocks` into full_: of `version`, or of newer ones too when not `exact`.
Status Sync::FetchFull(const std::vector<BlockIndex>& blocks, Version version, bool exact) {
  const std::vector<BlockIndex> rest = local_ ? local_->CopyBlocks(blocks, version, exact, *full_) : blocks;
  CountBytes();
  const BlockRun like{.kind = RequestKind::kFull, .version = version, .exact = exact};
  const auto count = static_cast<uint32_t>(rest.size());
  const uint64_t bytes = uint64_t{count} * order_.layout->block_bytes();
  return FetchByLanes(RunsOf(rest, like, BlocksPerRequest(bytes, count, kRequestBytes, plan_.lanes.tickets.size())),
                      *full_);
}

Status Sync::FetchByLanes(const std::vector<BlockRun>& runs, BlockSink& sink) {
  if (runs.empty()) return OkStatus();
  if (!lanes_) LS_RETURN_IF_ERROR(OpenLanes());
  const Status status = lanes_->Fetch(runs, sink);
  CountBytes();
  return status;
}

void Sync::CountBytes() {
  record_.set_local_bytes(local_ ? local_->copied_bytes() : 0);
  record_.set_live_bytes(live_bytes_);
  record_.set_payload_bytes(record_.local_bytes() + live_bytes_ + (lanes_ ? lanes_->counters().payload_bytes : 0));
  lane_retries_ = lanes_ ? lanes_->counters().retries : 0;
  record_.set_link_bytes_per_s(lanes_ ? lanes_->counters().bytes_per_s : 0);
}

}  // namespace lockstep
