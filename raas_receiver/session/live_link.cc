#include "raas_receiver/session/live_link.h"

#include "common/base/text.h"
#include "common/telemetry/log.h"

namespace lockstep::session {
namespace {

// An announced version was begun long ago: its first blocks are at most a round trip away.
constexpr std::chrono::milliseconds kPatience{2'000};
// Agents that cannot are not asked at every version.
constexpr std::chrono::seconds kOpenAgain{10};

}  // namespace

Status LiveLink::Open(const Layout& layout) {
  v1::OpenLiveRequest request;
  request.set_model(options_.model);
  request.set_receiver(options_.receiver);
  request.set_layout_digest(ToBytes(layout->digest()));
  request.set_lanes_wanted(static_cast<uint32_t>(options_.lanes));
  LS_ASSIGN_OR_RETURN(const v1::LivePlan answer, agent_.OpenLive(request));
  LS_ASSIGN_OR_RETURN(pull::LanePeer peer, ReadLivePlan(answer, layout, agent_.control()));
  pull_id_ = peer.pull_id;
  in_plaintext_ = peer.InPlaintext();
  layout_ = layout->digest();
  auto lanes = std::make_unique<pull::LivePull>(io_, std::move(peer));
  std::lock_guard lock(mutex_);
  if (cancelled_) return {ErrorCode::kCancelled, "the receiver stops"};
  lanes_ = std::move(lanes);
  return OkStatus();
}

void LiveLink::Follow(const v1::SyncRecord& record, const Held& held, const Layout& layout) {
  // Before something was pulled it is not known by which way, and nobody is to send anything early.
  if (record.payload_bytes() > 0) by_memory_ = record.local_bytes() > 0;
  if (by_memory_.value_or(true)) {
    Close();
  } else {
    Ask(held, layout);
  }
}

void LiveLink::Ask(const Held& held, const Layout& layout) {
  if (!options_.enabled || held == asked_) return;
  // Lanes that still owe the answer to another question are of no use for this one.
  const bool usable = lanes_ != nullptr && asked_.nothing() && lanes_->lost().ok() && layout->digest() == layout_;
  if (!usable) {
    Close();
    if (std::chrono::steady_clock::now() < open_again_) return;
    if (const Status opened = Open(layout); !opened.ok()) {
      open_again_ = std::chrono::steady_clock::now() + kOpenAgain;
      telemetry::Log(telemetry::LogLevel::kDebug, "live_subscribe_failed",
                     {{"model", options_.model}, {"message", opened.ToString()}});
      return;
    }
  }
  lanes_->Ask(held.version);
  asked_ = held;
}

Result<std::vector<payload::DeltaBlock>> LiveLink::Take(const RunId& run, const pull::DeltaStep& step) {
  if (!following()) return Status(ErrorCode::kNotFound, "no live delta was asked for");
  const Held asked = std::exchange(asked_, Held());
  // Another base than ours leads nowhere, and the lanes are still busy with it.
  if (asked != Held{run, step.base}) {
    Close();
    return Status(ErrorCode::kState, Cat("the live delta starts from version ", asked.version, ", not ", step.base));
  }
  Result<pull::LivePull::Delta> delta = lanes_->Take(kPatience);
  if (!delta.ok()) {
    const ErrorCode code = delta.status().code();
    if (code != ErrorCode::kAborted && code != ErrorCode::kState) Close();
    return delta.status();
  }
  if (delta->target == step.target && delta->blocks.size() == step.entries && delta->bytes == step.data_bytes) {
    AddSpanOf(*delta, run);
    return std::move(delta->blocks);
  }
  return Status(ErrorCode::kState,
                Cat("the live delta leads to version ", delta->target, " with ", delta->blocks.size(), " blocks and ",
                    delta->bytes, " bytes; planned are ", step.target, ", ", step.entries, " and ", step.data_bytes));
}

void LiveLink::AddSpanOf(const pull::LivePull::Delta& delta, const RunId& run) const {
  if (delta.blocks.empty()) return;
  telemetry::Span span{.name = "live",
                       .model = options_.model,
                       .run = run,
                       .version = delta.target,
                       .transfer = pull_id_,
                       .bytes = delta.bytes};
  telemetry::AddSpan(options_.timeline, std::move(span), telemetry::Moment(delta.begun), delta.ended);
}

void LiveLink::Close() {
  asked_ = {};
  std::unique_ptr<pull::LivePull> lanes;
  {
    std::lock_guard lock(mutex_);
    lanes = std::move(lanes_);
  }
  if (lanes == nullptr) return;
  lanes.reset();
  (void)agent_.ClosePull(pull_id_, {}, OkStatus());  // it ends with its lanes anyway
}

void LiveLink::Cancel() {
  std::lock_guard lock(mutex_);
  cancelled_ = true;
  if (lanes_ != nullptr) lanes_->Cancel();
}

}  // namespace lockstep::session
