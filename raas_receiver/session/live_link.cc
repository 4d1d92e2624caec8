#include "raas_receiver/session/live_link.h"

#include "common/base/text.h"
#include "common/telemetry/log.h"

namespace lockstep {
namespace {

// An announced version was begun long ago: its first blocks are at most a round trip away.
constexpr std::chrono::milliseconds kPatience{2'000};
// Agents that cannot are not asked at every version.
constexpr std::chrono::seconds kOpenAgain{10};

}  // namespace

Status LiveLink::Open(const std::shared_ptr<const ModelLayout>& layout, uint64_t link_bytes_per_s) {
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
  LiveOptions lane_options{
      .agent = grant.agent, .pull_id = pull_id_, .layout = layout, .tickets = std::move(grant.tickets)};
  auto lanes = std::make_unique<LiveLanes>(io_, std::move(lane_options));
  std::lock_guard lock(mutex_);
  if (cancelled_) return {ErrorCode::kCancelled, "the receiver stops"};
  lanes_ = std::move(lanes);
  return OkStatus();
}

void LiveLink::Follow(const Held& held, const std::shared_ptr<const ModelLayout>& layout, uint64_t link_bytes_per_s) {
  if (!options_.enabled || held == asked_) return;
  // Lanes that still owe the answer to another question are of no use for this one.
  const bool usable = lanes_ != nullptr && asked_.nothing() && lanes_->status().ok() && layout->digest() == layout_;
  if (!usable) {
    Close();
    if (std::chrono::steady_clock::now() < open_again_) return;
    if (const Status opened = Open(layout, link_bytes_per_s); !opened.ok()) {
      open_again_ = std::chrono::steady_clock::now() + kOpenAgain;
      Log(LogLevel::kDebug, "no_live_deltas", {{"model", options_.model}, {"message", opened.ToString()}});
      return;
    }
  }
  lanes_->Ask(held.version);
  asked_ = held;
}

std::optional<std::vector<DeltaBlock>> LiveLink::Take(const Held& base, const PlanStep& step) {
  if (lanes_ == nullptr || asked_.nothing()) return std::nullopt;
  const Held asked = std::exchange(asked_, Held());
  // Another base than ours leads nowhere: the lanes are still busy with it, so they are given up.
  if (asked != base || step.base != base.version) {
    Close();
    return std::nullopt;
  }
  Result<LiveLanes::Delta> delta = lanes_->Take(kPatience);
  const bool planned = delta.ok() && delta->target == step.target && delta->blocks.size() == step.entries;
  if (planned) {
    AddSpanOf(*delta, base);
    return std::move(delta->blocks);
  }
  const ErrorCode code = delta.status().code();
  const bool usable = delta.ok() || code == ErrorCode::kAborted || code == ErrorCode::kState;
  const std::string why = delta.ok() ? Cat("it leads to version ", delta->target, " with ", delta->blocks.size(),
                                           " blocks; planned are ", step.target, " and ", step.entries)
                                     : delta.status().ToString();
  Log(LogLevel::kDebug, "live_delta_unused", {{"model", options_.model}, {"version", step.target}, {"message", why}});
  if (!usable) Close();
  return std::nullopt;
}

void LiveLink::AddSpanOf(const LiveLanes::Delta& delta, const Held& base) const {
  if (delta.blocks.empty()) return;
  Span span{.name = "live",
            .model = options_.model,
            .run = base.run,
            .version = delta.target,
            .transfer = pull_id_,
            .bytes = lanes_->received_bytes()};
  AddSpan(options_.timeline, std::move(span), Moment(delta.begun), delta.ended);
}

void LiveLink::Close() {
  asked_ = {};
  std::unique_ptr<LiveLanes> lanes;
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

}  // namespace lockstep
