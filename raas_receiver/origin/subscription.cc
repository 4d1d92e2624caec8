#include "raas_receiver/origin/subscription.h"

#include <utility>

#include "common/base/text.h"
#include "common/telemetry/log.h"

namespace lockstep::origin {
namespace {

// Agents that cannot are not asked at every version.
constexpr std::chrono::seconds kOpenAgain{10};

}  // namespace

void Subscription::Ask(const Want& from, std::stop_token stop) {
  const bool there = lanes_ != nullptr && lanes_->lost().ok() && !lanes_->stopping();
  if (there && from.held == base_) return;
  // Lanes that still owe the answer to another question are of no use for this one.
  const bool usable = there && base_.nothing() && from.layout->digest() == layout_->digest();
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
  base_ = from.held;
  {
    MutexLock lock(mutex_);
    delta_ = {.here = std::vector<bool>(layout_->block_count())};
    counters_ = {};
  }
  lanes_->Post(RunsOf(pull::StreamRequest{base_.version}, shares_), *this);
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
  layout_ = from.layout;
  shares_ = static_cast<uint32_t>(peer->tickets.size());
  // A lane has one attempt, and takes no second ticket.
  auto lanes = std::make_unique<pull::LaneSet>(
      io_, pull::LaneOptions{.peer = *std::move(peer), .attempts = 1, .standing = true}, nullptr);
  MutexLock lock(mutex_);
  lanes_ = std::move(lanes);
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
  LS_ASSIGN_OR_RETURN(Delta delta, Take({request.run, step.base}, step));
  for (payload::DeltaBlock& block : delta.blocks) LS_RETURN_IF_ERROR(sink.PutEntry(step.payload_id, std::move(block)));
  const bool plain = lanes_->counters().plain_bytes > 0;
  MutexLock lock(mutex_);
  counters_ = {.payload_bytes = delta.bytes, .plain_bytes = plain ? delta.bytes : 0, .streamed_bytes = delta.bytes};
  return OkStatus();
}

// The delta from `base` on, when that is what was asked for and it is `step`.
Result<Subscription::Delta> Subscription::Take(const VersionRef& base, const pull::DeltaStep& step) {
  if (!asked()) return Status(ErrorCode::kNotFound, "no streaming delta was asked for");
  const VersionRef asked = std::exchange(base_, VersionRef());
  // Another base than ours leads nowhere, and the lanes are still busy with it.
  if (asked != base) {
    Close();
    return Status(ErrorCode::kState,
                  Cat("the streaming delta starts from version ", asked.version, ", not ", step.base));
  }
  if (Status came = lanes_->Wait(options_.patience); !came.ok()) {
    if (came.code() != ErrorCode::kAborted && came.code() != ErrorCode::kState) Close();
    return came;
  }
  Delta delta;
  {
    MutexLock lock(mutex_);
    delta = std::move(delta_);
  }
  if (delta.target == step.target && delta.blocks.size() == step.entries && delta.bytes == step.data_bytes) {
    AddSpanOf(delta, base.run);
    return delta;
  }
  return Status(ErrorCode::kState, Cat("the streaming delta leads to version ", delta.target, " with ",
                                       delta.blocks.size(), " blocks and ", delta.bytes, " bytes; planned are ",
                                       step.target, ", ", step.entries, " and ", step.data_bytes));
}

void Subscription::AddSpanOf(const Delta& delta, const RunId& run) const {
  if (delta.blocks.empty()) return;
  telemetry::Span span{.name = "streaming",
                       .model = options_.model,
                       .run = run,
                       .version = delta.target,
                       .transfer = pull_id_,
                       .bytes = delta.bytes};
  telemetry::AddSpan(options_.timeline, std::move(span), telemetry::Moment(delta.begun), delta.ended);
}

Status Subscription::Put(const wire::FrameHeader& frame, ByteView payload) {
  payload::DeltaBlock block = pull::EntryOf(frame, Bytes(payload.begin(), payload.end()));
  MutexLock lock(mutex_);
  if (delta_.here[frame.block]) return pull::Broken(frame, "came twice");
  if (frame.payload_bytes > layout_->data_bytes() - delta_.bytes) {
    return pull::Broken(frame, "is more than the model");
  }
  LS_RETURN_IF_ERROR(AgreeOnTarget(frame.version));
  delta_.here[frame.block] = true;
  delta_.bytes += frame.payload_bytes;
  delta_.ended = std::chrono::steady_clock::now();
  if (delta_.blocks.empty()) delta_.begun = delta_.ended;
  delta_.blocks.push_back(std::move(block));
  return OkStatus();
}

Status Subscription::EndShare(Version target) {
  MutexLock lock(mutex_);
  return AgreeOnTarget(target);
}

Status Subscription::AgreeOnTarget(Version target) {
  if (delta_.target == 0) delta_.target = target;
  if (target == delta_.target) return OkStatus();
  return {ErrorCode::kProtocol,
          Cat("a streaming delta leads to version ", target, " on one lane and to ", delta_.target, " on another")};
}

void Subscription::Close() {
  base_ = {};
  std::unique_ptr<pull::LaneSet> lanes;
  {
    MutexLock lock(mutex_);
    lanes = std::move(lanes_);
  }
  if (lanes == nullptr) return;
  lanes.reset();
  (void)agent_.ClosePull(pull_id_, {}, OkStatus());  // it ends with its lanes anyway
}

void Subscription::Cancel() {
  MutexLock lock(mutex_);
  if (lanes_ != nullptr) lanes_->Cancel();
}

pull::SourceCounters Subscription::counters() const {
  MutexLock lock(mutex_);
  return counters_;
}

}  // namespace lockstep::origin
