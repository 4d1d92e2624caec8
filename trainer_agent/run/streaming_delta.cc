#include "trainer_agent/run/streaming_delta.h"

#include <algorithm>
#include <utility>

#include "common/base/text.h"

namespace lockstep::run {
namespace {

// Waking a reader costs more than a block: it is done for several at a time.
constexpr size_t kWakeEvery = 32;
// A reader copies an update under the lock that the maker needs.
constexpr size_t kBlocksPerUpdate = 256;

constexpr size_t kSealedKept = 2;

}  // namespace

void StreamingDelta::Add(std::shared_ptr<const payload::DeltaBlock> block) {
  MutexLock lock(mutex_);
  if (ended_) return;
  blocks_.push_back(std::move(block));
  if (blocks_.size() % kWakeEvery != 0) return;
  std::vector<Wake> wakes;
  waiting_.Take(wakes);
  lock.unlock();
  CallAll(wakes);
}

void StreamingDelta::Seal() {
  End(OkStatus(), false);
}

void StreamingDelta::Abort(Status why) {
  End(std::move(why), false);
}

void StreamingDelta::Drop(Status why) {
  End(std::move(why), true);
}

void StreamingDelta::End(Status aborted, bool again) {
  MutexLock lock(mutex_);
  if (ended_ && !again) return;
  ended_ = true;
  aborted_ = std::move(aborted);
  if (!aborted_.ok()) blocks_.clear();
  std::vector<Wake> wakes;
  waiting_.Take(wakes);
  lock.unlock();
  CallAll(wakes);
}

StreamingDelta::Update StreamingDelta::Since(size_t seen) const {
  MutexLock lock(mutex_);
  const size_t first = std::min(seen, blocks_.size());
  const size_t end = std::min(blocks_.size(), first + kBlocksPerUpdate);
  return {.blocks = {blocks_.begin() + static_cast<std::ptrdiff_t>(first),
                     blocks_.begin() + static_cast<std::ptrdiff_t>(end)},
          .sealed = ended_ && aborted_.ok() && end == blocks_.size(),
          .aborted = aborted_};
}

bool StreamingDelta::WakeOnUpdate(size_t seen, std::weak_ptr<const void> reader, Wake wake) {
  MutexLock lock(mutex_);
  if (HasUpdate(seen)) return false;
  waiting_.Add(std::move(reader), std::move(wake));
  return true;
}

std::shared_ptr<StreamingDelta> DeltaFeed::Begin(Version base, Version target) {
  auto delta = std::make_shared<StreamingDelta>(base, target);
  std::vector<Wake> wakes;
  std::shared_ptr<StreamingDelta> before;
  {
    MutexLock lock(mutex_);
    newest_ = base;
    before = std::exchange(delta_, delta);
    waiting_.Take(wakes);
  }
  if (before != nullptr) before->Abort({ErrorCode::kAborted, "another version was begun"});
  CallAll(wakes);
  return delta;
}

void DeltaFeed::SetNewest(Version newest) {
  std::vector<Wake> wakes;
  std::shared_ptr<StreamingDelta> old;
  {
    MutexLock lock(mutex_);
    newest_ = newest;
    // Its readers keep it; a later reader finds the whole one in the store.
    if (delta_ != nullptr) sealed_.push_back(std::exchange(delta_, nullptr));
    if (sealed_.size() > kSealedKept) {
      old = sealed_.front().lock();
      sealed_.pop_front();
    }
    waiting_.Take(wakes);
  }
  if (old != nullptr) old->Drop({ErrorCode::kAborted, "two newer versions are served: pull"});
  CallAll(wakes);
}

void DeltaFeed::End() {
  std::shared_ptr<StreamingDelta> last;
  {
    MutexLock lock(mutex_);
    last = delta_;
  }
  if (last != nullptr) last->Abort({ErrorCode::kAborted, "the run has ended"});
  SetNewest(0);
}

bool DeltaFeed::followed() const {
  MutexLock lock(mutex_);
  return !follower_.expired();
}

std::shared_ptr<const void> DeltaFeed::Follow() {
  MutexLock lock(mutex_);
  auto follower = follower_.lock();
  if (follower == nullptr) follower_ = follower = std::make_shared<char>();
  return follower;
}

bool DeltaFeed::Waits(Version base) const {
  return base == newest_ && (delta_ == nullptr || delta_->base() != base);
}

Result<std::shared_ptr<StreamingDelta>> DeltaFeed::Find(Version base) const {
  MutexLock lock(mutex_);
  if (delta_ != nullptr && delta_->base() == base) return delta_;
  if (base == newest_) return std::shared_ptr<StreamingDelta>();
  return Status(ErrorCode::kState, Cat("no delta from version ", base, " will be made; the newest is ", newest_));
}

bool DeltaFeed::WakeWhenBegun(Version base, std::weak_ptr<const void> reader, Wake wake) {
  MutexLock lock(mutex_);
  if (!Waits(base)) return false;
  waiting_.Add(std::move(reader), std::move(wake));
  return true;
}

}  // namespace lockstep::run
