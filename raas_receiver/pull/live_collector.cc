#include "raas_receiver/pull/live_collector.h"

#include "common/base/text.h"
#include "raas_receiver/pull/block_run.h"

namespace lockstep::pull {

void LiveCollector::Begin(Version base) {
  std::lock_guard lock(mutex_);
  delta_ = {.base = base};
  announced_.assign(layout_->block_count(), false);
  answered_ = 0;
  refusal_ = OkStatus();
  ++number_;
}

Result<LiveCollector::Delta> LiveCollector::Take(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  const auto done = [this] { return cancelled_ || !failure_.ok() || answered_ == lanes_; };
  for (uint64_t seen = progress_; !done(); seen = progress_) {
    if (!changed_.wait_for(lock, patience, [&] { return done() || progress_ != seen; })) {
      return Status(ErrorCode::kDeadline,
                    Cat("nothing came of the delta from version ", delta_.base, " for ", patience.count(), " ms"));
    }
  }
  if (cancelled_) return Status(ErrorCode::kCancelled, "the receiver stops");
  LS_RETURN_IF_ERROR(failure_);
  LS_RETURN_IF_ERROR(refusal_);
  return std::move(delta_);
}

void LiveCollector::Cancel() {
  std::lock_guard lock(mutex_);
  cancelled_ = true;
  changed_.notify_all();
}

Status LiveCollector::status() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

LiveCollector::Request LiveCollector::request() const {
  std::lock_guard lock(mutex_);
  return {number_, delta_.base};
}

Status LiveCollector::AgreeOnTarget(Version target) {
  if (delta_.target == 0) delta_.target = target;
  if (target == delta_.target) return OkStatus();
  return {ErrorCode::kProtocol,
          Cat("a live delta leads to version ", target, " on one lane and to ", delta_.target, " on another")};
}

Status LiveCollector::Admit(const wire::FrameHeader& frame, uint32_t share) {
  std::lock_guard lock(mutex_);
  if (frame.block % lanes_ != share) return Broken(frame, Cat("is not of share ", share, " of ", lanes_));
  if (frame.payload_id != 0) return Broken(frame, "names a payload");
  if (frame.base_version != delta_.base) {
    return Broken(frame, Cat("starts from version ", frame.base_version, ", asked for ", delta_.base));
  }
  LS_RETURN_IF_ERROR(CheckRaw(frame, *layout_));
  if (announced_[frame.block]) return Broken(frame, "came twice");
  if (frame.payload_bytes > layout_->data_bytes() - delta_.bytes) return Broken(frame, "is more than the model");
  LS_RETURN_IF_ERROR(AgreeOnTarget(frame.version));
  announced_[frame.block] = true;
  delta_.bytes += frame.payload_bytes;
  return OkStatus();
}

// REQUIRES the lock.
void LiveCollector::Progress() {
  ++progress_;
  changed_.notify_all();
}

void LiveCollector::Add(payload::DeltaBlock block) {
  std::lock_guard lock(mutex_);
  delta_.ended = std::chrono::steady_clock::now();
  if (delta_.blocks.empty()) delta_.begun = delta_.ended;
  delta_.blocks.push_back(std::move(block));
  Progress();
}

Status LiveCollector::EndShare(Version target) {
  std::lock_guard lock(mutex_);
  LS_RETURN_IF_ERROR(AgreeOnTarget(target));
  ++answered_;
  Progress();
  return OkStatus();
}

void LiveCollector::Refuse(Status why) {
  std::lock_guard lock(mutex_);
  if (refusal_.ok()) refusal_ = std::move(why);
  ++answered_;
  Progress();
}

void LiveCollector::Leave(Status why) {
  std::lock_guard lock(mutex_);
  if (failure_.ok()) failure_ = std::move(why);
  ++left_;
  changed_.notify_all();
}

void LiveCollector::WaitForLanes() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return left_ == lanes_; });
}

}  // namespace lockstep::pull
