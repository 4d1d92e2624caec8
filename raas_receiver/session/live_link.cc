#include "raas_receiver/session/live_link.h"

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "raas_receiver/session/plan.h"

namespace lockstep::session {
namespace {

// An announced version was begun long ago: its first blocks are at most a round trip away.
constexpr std::chrono::milliseconds kPatience{2'000};
// Agents that cannot are not asked at every version.
constexpr std::chrono::seconds kOpenAgain{10};

}  // namespace

Status LiveLink::Open(const std::shared_ptr<const model::ModelLayout>& layout, uint64_t link_bytes_per_s) {
  v1::OpenLiveRequest request;
  request.set_model(options_.model);
  request.set_receiver(options_.receiver);
  request.set_layout_digest(ToBytes(layout->digest()));
  request.set_lanes_wanted(static_cast<uint32_t>(options_.lanes));
  request.set_link_bytes_per_s(link_bytes_per_s);
  LS_ASSIGN_OR_RETURN(const v1::LivePlan answer, agent_.OpenLive(request));
  LS_ASSIGN_OR_RETURN(LaneGrant grant, ReadLivePlan(answer, agent_.address()));
  pull_id_ = answer.pull_id();
  layout_ = layout->digest();
  pull::LanePeer peer{.agent = grant.agent, .pull_id = pull_id_, .layout = layout, .tickets = std::move(grant.tickets)};
  auto lanes = std::make_unique<pull::LiveLanes>(io_, std::move(peer));
  std::lock_guard lock(mutex_);
  if (cancelled_) return {ErrorCode::kCancelled, "the receiver stops"};
  lanes_ = std::move(lanes);
  return OkStatus();
}

void LiveLink::Follow(const v1::SyncRecord& record, const Held& held,
                      const std::shared_ptr<const model::ModelLayout>& layout, uint64_t link_bytes_per_s) {
  // Before something was pulled it is not known by which way, and nobody is to send anything early.
  if (record.payload_bytes() > 0) by_memory_ = record.local_bytes() > 0;
  if (by_memory_.value_or(true)) {
    Close();
  } else {
    Ask(held, layout, link_bytes_per_s);
  }
}

void LiveLink::Ask(const Held& held, const std::shared_ptr<const model::ModelLayout>& layout,
                   uint64_t link_bytes_per_s) {
  if (!options_.enabled || held == asked_) return;
  // Lanes that still owe the answer to another question are of no use for this one.
  const bool usable = lanes_ != nullptr && asked_.nothing() && lanes_->status().ok() && layout->digest() == layout_;
  if (!usable) {
    Close();
    if (std::chrono::steady_clock::now() < open_again_) return;
    if (const Status opened = Open(layout, link_bytes_per_s); !opened.ok()) {
      open_again_ = std::chrono::steady_clock::now() + kOpenAgain;
      telemetry::Log(telemetry::LogLevel::kDebug, "live_subscribe_failed",
                     {{"model", options_.model}, {"message", opened.ToString()}});
      return;
    }
  }
  lanes_->Ask(held.version);
  asked_ = held;
}

Result<std::vector<payload::DeltaBlock>> LiveLink::Take(const Held& base, const pull::DeltaStep& step) {
  if (!following()) return Status(ErrorCode::kNotFound, "no live delta was asked for");
  const Held asked = std::exchange(asked_, Held());
  // Another base than ours leads nowhere, and the lanes are still busy with it.
  if (asked != base || step.base != base.version) {
    Close();
    return Status(ErrorCode::kState, Cat("the live delta starts from version ", asked.version, ", not ", step.base));
  }
  Result<pull::LiveLanes::Delta> delta = lanes_->Take(kPatience);
  if (!delta.ok()) {
    const ErrorCode code = delta.status().code();
    if (code != ErrorCode::kAborted && code != ErrorCode::kState) Close();
    return delta.status();
  }
  const uint64_t bytes = lanes_->received_bytes();
  const bool same = delta->target == step.target && delta->blocks.size() == step.entries;
  if (same && bytes == step.data_bytes) {
    AddSpanOf(*delta, base);
    return std::move(delta->blocks);
  }
  if (same) Close();  // coded at another level than this link is worth by now: the next subscription says so
  return Status(ErrorCode::kState,
                Cat("the live delta leads to version ", delta->target, " with ", delta->blocks.size(), " blocks and ",
                    bytes, " bytes; planned are ", step.target, ", ", step.entries, " and ", step.data_bytes));
}

void LiveLink::AddSpanOf(const pull::LiveLanes::Delta& delta, const Held& base) const {
  if (delta.blocks.empty()) return;
  telemetry::Span span{.name = "live",
                       .model = options_.model,
                       .run = base.run,
                       .version = delta.target,
                       .transfer = pull_id_,
                       .bytes = lanes_->received_bytes()};
  telemetry::AddSpan(options_.timeline, std::move(span), telemetry::Moment(delta.begun), delta.ended);
}

void LiveLink::Close() {
  asked_ = {};
  std::unique_ptr<pull::LiveLanes> lanes;
  {
    std::lock_guard lock(mutex_);
    lanes = std::move(lanes_);
  }
  if (lanes == nullptr) return;
  lanes.reset();
  (void)agent_.ClosePull(pull_id_, {}, "ok");  // it ends with its lanes anyway
}

void LiveLink::Cancel() {
  std::lock_guard lock(mutex_);
  cancelled_ = true;
  if (lanes_ != nullptr) lanes_->Cancel();
}

pull::SourceCounters LiveSource::counters() const {
  const uint64_t bytes = bytes_;
  return {.payload_bytes = bytes, .live_bytes = bytes};
}

Status LiveSource::FetchBlocks(const pull::FullRequest& request, pull::BlockSink&) {
  if (request.blocks.empty()) return OkStatus();
  return {ErrorCode::kNotFound, "a live delta has no blocks in full"};
}

Status LiveSource::FetchDeltas(const pull::DeltaRequest& request, pull::DeltaSink& sink) {
  if (request.steps.empty()) return OkStatus();
  if (request.steps.size() > 1) return {ErrorCode::kNotFound, "a live delta is one step"};
  const pull::DeltaStep& step = request.steps[0];
  LS_ASSIGN_OR_RETURN(std::vector<payload::DeltaBlock> entries, link_.Take({request.run, step.base}, step));
  for (payload::DeltaBlock& entry : entries) LS_RETURN_IF_ERROR(sink.PutEntry(step.payload_id, std::move(entry)));
  bytes_ += step.data_bytes;
  return OkStatus();
}

}  // namespace lockstep::session
