#include "raas_receiver/pull/run_queue.h"

#include <algorithm>
#include <utility>

#include "common/base/text.h"

namespace lockstep::pull {
namespace {

// Fewer measure latency, not the link's rate.
constexpr uint64_t kRateBytes = 1 << 20;

}  // namespace

void RunQueue::Join(std::shared_ptr<RunConsumer> lane) {
  MutexLock lock(mutex_);
  lanes_.push_back(std::move(lane));
  ++present_;
}

void RunQueue::Post(const std::vector<BlockRun>& runs, BlockSink& sink) {
  MutexLock lock(mutex_);
  queue_.assign(runs.begin(), runs.end());
  sink_ = &sink;
  failure_ = OkStatus();
  first_block_ = last_block_ = {};
  bytes_after_first_ = 0;
  WakeAll();
}

Status RunQueue::Wait(const std::function<Result<std::vector<Ticket>>(size_t lanes)>& renew,
                      std::optional<std::chrono::milliseconds> patience) {
  MutexLock lock(mutex_);
  while (true) {
    if (stopping_) Fail({ErrorCode::kCancelled, "the pull was cancelled"});
    if (present_ == 0 && !queue_.empty()) Fail(last_loss_);
    if (standing_ && !last_loss_.ok()) return last_loss_;  // others may wait for hours
    if (Settled()) return failure_;
    if (!wanting_tickets_.empty() && failure_.ok()) {
      const std::vector<std::shared_ptr<RunConsumer>> lanes = std::exchange(wanting_tickets_, {});
      lock.unlock();
      ServeTickets(lanes, renew);
      lock.lock();
    } else if (!patience) {
      changed_.wait(lock);
    } else {
      // Blocks wake no waiter: whether there were some is seen when the time is over.
      const uint64_t seen = progress_;
      const bool late = changed_.wait_for(lock, *patience) == std::cv_status::timeout;
      if (late && progress_ == seen && !Settled()) {
        return {ErrorCode::kDeadline, Cat("nothing came for ", patience->count(), " ms")};
      }
    }
  }
}

bool RunQueue::Settled() const {
  return queue_.empty() && taken_ == 0;
}

void RunQueue::Fail(Status status) {
  if (failure_.ok()) failure_ = std::move(status);
  queue_.clear();
}

void RunQueue::ServeTickets(const std::vector<std::shared_ptr<RunConsumer>>& lanes,
                            const std::function<Result<std::vector<Ticket>>(size_t lanes)>& renew) {
  Result<std::vector<Ticket>> tickets = renew(lanes.size());
  for (size_t i = 0; i < lanes.size(); ++i) {
    if (!tickets.ok()) {
      lanes[i]->GiveTicket(tickets.status());
    } else if (i < tickets->size()) {
      lanes[i]->GiveTicket((*tickets)[i]);
    } else {
      lanes[i]->GiveTicket(Status(ErrorCode::kResourceExhausted, "the agent grants no more lanes"));
    }
  }
}

void RunQueue::Stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  WakeAll();
  changed_.notify_all();
}

void RunQueue::WaitForLanes() {
  MutexLock lock(mutex_);
  changed_.wait(lock, [this]() LS_REQUIRES(mutex_) { return present_ == 0; });
  lanes_.clear();  // they hold the queue as the queue holds them
  wanting_tickets_.clear();
}

bool RunQueue::stopping() const {
  MutexLock lock(mutex_);
  return stopping_;
}

std::optional<BlockRun> RunQueue::Take(uint32_t lane) {
  MutexLock lock(mutex_);
  const auto next = standing_ ? std::ranges::find(queue_, lane, &BlockRun::first) : queue_.begin();
  if (stopping_ || next == queue_.end()) return std::nullopt;
  const BlockRun run = *next;
  queue_.erase(next);
  ++taken_;
  return run;
}

void RunQueue::WantSpares() {
  MutexLock lock(mutex_);
  if (std::exchange(spares_wanted_, true)) return;
  WakeAll();
}

bool RunQueue::spares_wanted() const {
  MutexLock lock(mutex_);
  return spares_wanted_;
}

void RunQueue::Count(uint64_t payload_bytes, Clock::time_point now) {
  MutexLock lock(mutex_);
  ++progress_;
  counters_.payload_bytes += payload_bytes;
  last_block_ = now;
  if (first_block_ == Clock::time_point{}) {
    first_block_ = now;
    return;
  }
  bytes_after_first_ += payload_bytes;
  const double seconds = std::chrono::duration<double>(last_block_ - first_block_).count();
  if (bytes_after_first_ >= kRateBytes && seconds > 0) {
    counters_.bytes_per_s = static_cast<uint64_t>(static_cast<double>(bytes_after_first_) / seconds);
  }
}

void RunQueue::Return(std::optional<BlockRun> rest) {
  MutexLock lock(mutex_);
  --taken_;
  ++progress_;
  if (rest && failure_.ok()) {
    queue_.push_front(*rest);
    WakeAll();
  }
  if (Settled()) changed_.notify_all();
}

void RunQueue::Refuse(Status why) {
  MutexLock lock(mutex_);
  --taken_;
  Fail(std::move(why));
  changed_.notify_all();
}

void RunQueue::WantTicket(std::shared_ptr<RunConsumer> lane) {
  MutexLock lock(mutex_);
  ++counters_.retries;
  wanting_tickets_.push_back(std::move(lane));
  changed_.notify_all();
}

void RunQueue::Leave(Status status) {
  MutexLock lock(mutex_);
  if (!status.ok()) {
    if (!standing_ || last_loss_.ok()) last_loss_ = std::move(status);  // what follows from the first says less
    spares_wanted_ = true;
    WakeAll();
  }
  --present_;
  changed_.notify_all();
}

void RunQueue::WakeAll() {
  for (const auto& lane : lanes_) lane->Wake();
}

Status RunQueue::lost() const {
  MutexLock lock(mutex_);
  return last_loss_;
}

SourceCounters RunQueue::counters() const {
  MutexLock lock(mutex_);
  return counters_;
}

}  // namespace lockstep::pull
