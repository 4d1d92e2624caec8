#include "raas_receiver/origin/subscription.h"

#include <utility>

#include "common/base/text.h"
#include "common/telemetry/log.h"

namespace lockstep::origin {
namespace {

// An announced version was begun long ago: its first blocks are at most a round trip away.
constexpr std::chrono::milliseconds kPatience{2'000};
// Agents that cannot are not asked at every version.
constexpr std::chrono::seconds kOpenAgain{10};

}  // namespace

void Subscription::Ask(const Want& from, std::stop_token stop) {
  const bool there = standing_ != nullptr && standing_->lost().ok();
  if (there && from.held == base_) return;
  // Lanes that still owe the answer to another question are of no use for this one.
  const bool usable = there && base_.nothing() && from.layout->digest() == layout_;
  if (!usable) {
    Close();
    if (std::chrono::steady_clock::now() < open_again_) return;
    if (const Status opened = Open(from, std::move(stop)); !opened.ok()) {
      open_again_ = std::chrono::steady_clock::now() + kOpenAgain;
      telemetry::Log(telemetry::LogLevel::kDebug, "streaming_subscribe_failed",
                     {{"model", options_.model}, {"message", opened.ToString()}});
      return;
    }
  }
  bytes_ = 0;
  standing_->Ask(from.held.version);
  base_ = from.held;
}

Status Subscription::Open(const Want& from, std::stop_token stop) {
  v1::OpenPullRequest request;
  request.set_standing(true);
  // For an agent that does not know standing pulls: it is up to date then, and opens none.
  *request.mutable_held() = ToProto(from.held);
  request.set_held_digest(ToBytes(from.digest));
  request.set_model(options_.model);
  request.set_receiver(options_.receiver);
  request.set_layout_digest(ToBytes(from.layout->digest()));
  request.set_lanes_wanted(static_cast<uint32_t>(options_.lanes));
  LS_ASSIGN_OR_RETURN(const v1::PullPlan answer, agent_.OpenPull(request, std::move(stop)));
  pull_id_ = answer.pull_id();
  Result<pull::LanePeer> peer = ReadStandingPlan(answer, from.layout, agent_.control());
  if (!peer.ok()) {
    if (pull_id_ != 0) (void)agent_.ClosePull(pull_id_, from.held, peer.status());
    return peer.status();
  }
  in_plaintext_ = peer->InPlaintext();
  layout_ = from.layout->digest();
  auto standing = std::make_unique<pull::StandingPull>(io_, *std::move(peer));
  MutexLock lock(mutex_);
  standing_ = std::move(standing);
  return OkStatus();
}

Status Subscription::FetchBlocks(const pull::FullRequest& request, pull::BlockSink&) {
  if (request.blocks.empty()) return OkStatus();
  return {ErrorCode::kNotFound, "a streaming delta has no blocks in full"};
}

Status Subscription::FetchDeltas(const pull::DeltaRequest& request, pull::DeltaSink& sink) {
  if (request.steps.empty()) return OkStatus();
  if (request.steps.size() > 1) return {ErrorCode::kNotFound, "a streaming delta is one step"};
  const pull::DeltaStep& step = request.steps[0];
  LS_ASSIGN_OR_RETURN(pull::StandingPull::Delta delta, Take({request.run, step.base}, step));
  for (payload::DeltaBlock& block : delta.blocks) LS_RETURN_IF_ERROR(sink.PutEntry(step.payload_id, std::move(block)));
  bytes_ = delta.bytes;
  return OkStatus();
}

// The delta from `base` on, when that is what was asked for and it is `step`.
Result<pull::StandingPull::Delta> Subscription::Take(const VersionRef& base, const pull::DeltaStep& step) {
  if (!asked()) return Status(ErrorCode::kNotFound, "no streaming delta was asked for");
  const VersionRef asked = std::exchange(base_, VersionRef());
  // Another base than ours leads nowhere, and the lanes are still busy with it.
  if (asked != base) {
    Close();
    return Status(ErrorCode::kState,
                  Cat("the streaming delta starts from version ", asked.version, ", not ", step.base));
  }
  Result<pull::StandingPull::Delta> delta = standing_->Take(kPatience);
  if (!delta.ok()) {
    const ErrorCode code = delta.status().code();
    if (code != ErrorCode::kAborted && code != ErrorCode::kState) Close();
    return delta;
  }
  if (delta->target == step.target && delta->blocks.size() == step.entries && delta->bytes == step.data_bytes) {
    AddSpanOf(*delta, base.run);
    return delta;
  }
  return Status(ErrorCode::kState, Cat("the streaming delta leads to version ", delta->target, " with ",
                                       delta->blocks.size(), " blocks and ", delta->bytes, " bytes; planned are ",
                                       step.target, ", ", step.entries, " and ", step.data_bytes));
}

void Subscription::AddSpanOf(const pull::StandingPull::Delta& delta, const RunId& run) const {
  if (delta.blocks.empty()) return;
  telemetry::Span span{.name = "streaming",
                       .model = options_.model,
                       .run = run,
                       .version = delta.target,
                       .transfer = pull_id_,
                       .bytes = delta.bytes};
  telemetry::AddSpan(options_.timeline, std::move(span), telemetry::Moment(delta.begun), delta.ended);
}

void Subscription::Close() {
  base_ = {};
  std::unique_ptr<pull::StandingPull> standing;
  {
    MutexLock lock(mutex_);
    standing = std::move(standing_);
  }
  if (standing == nullptr) return;
  standing.reset();
  (void)agent_.ClosePull(pull_id_, {}, OkStatus());  // it ends with its lanes anyway
}

void Subscription::Cancel() {
  MutexLock lock(mutex_);
  if (standing_ != nullptr) standing_->Cancel();
}

pull::SourceCounters Subscription::counters() const {
  const uint64_t bytes = bytes_;
  return {.payload_bytes = bytes, .plain_bytes = in_plaintext_ ? bytes : 0, .streamed_bytes = bytes};
}

}  // namespace lockstep::origin
