#include "raas_receiver/pull/lane_set.h"

#include <algorithm>
#include <utility>

#include "common/base/text.h"
#include "raas_receiver/pull/lane.h"

namespace lockstep::pull {
namespace {

// Fewer measure latency, not the link's rate.
constexpr uint64_t kRateBytes = 1 << 20;

}  // namespace

LaneSet::LaneSet(net::IoThreads& io, LaneOptions options, RenewTickets renew)
    : io_(io), options_(std::make_shared<const LaneOptions>(std::move(options))), renew_(std::move(renew)) {}

LaneSet::~LaneSet() {
  LaneSet::Cancel();
  MutexLock lock(mutex_);
  changed_.wait(lock, [this]() LS_REQUIRES(mutex_) { return present_ == 0; });
}

void LaneSet::Start() {
  MutexLock lock(mutex_);
  for (uint32_t number = 0; number < options_->peer.tickets.size(); ++number) {
    lanes_.push_back(std::make_shared<Lane>(io_, options_, *this, number));
    lanes_.back()->Start();
  }
  present_ = lanes_.size();
}

Status LaneSet::FetchBlocks(const FullRequest& request, BlockSink& sink) {
  return Fetch(RunsOf(request, *options_->peer.layout, options_->peer.tickets.size()), sink);
}

Status LaneSet::FetchDeltas(const DeltaRequest& request, DeltaSink& sink) {
  return Fetch(RunsOf(request, *options_->peer.layout, options_->peer.tickets.size()), sink);
}

Status LaneSet::Fetch(const std::vector<BlockRun>& runs, BlockSink& sink) {
  if (runs.empty()) return OkStatus();
  Post(runs, sink);
  return Wait();
}

void LaneSet::Post(const std::vector<BlockRun>& runs, BlockSink& sink) {
  if (!std::exchange(started_, true)) Start();
  MutexLock lock(mutex_);
  runs_.assign(runs.begin(), runs.end());
  sink_ = &sink;
  failure_ = OkStatus();
  first_block_ = last_block_ = {};
  bytes_after_first_ = 0;
  WakeAll();
}

Status LaneSet::Wait(std::optional<std::chrono::milliseconds> patience) {
  MutexLock lock(mutex_);
  while (true) {
    if (stopping_) Fail({ErrorCode::kCancelled, "the pull was cancelled"});
    if (present_ == 0 && !runs_.empty()) Fail(last_loss_);
    if (options_->standing && !last_loss_.ok()) return last_loss_;  // others may wait for hours
    if (Settled()) return failure_;
    if (!wanting_tickets_.empty() && failure_.ok()) {
      const std::vector<std::shared_ptr<Lane>> lanes = std::exchange(wanting_tickets_, {});
      lock.unlock();
      ServeTickets(lanes);
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

bool LaneSet::Settled() const {
  return runs_.empty() && taken_ == 0;
}

void LaneSet::Fail(Status status) {
  if (failure_.ok()) failure_ = std::move(status);
  runs_.clear();
}

void LaneSet::ServeTickets(const std::vector<std::shared_ptr<Lane>>& lanes) const {
  const Result<std::vector<Ticket>> tickets = renew_(lanes.size());
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

void LaneSet::Cancel() {
  MutexLock lock(mutex_);
  stopping_ = true;
  WakeAll();
  changed_.notify_all();
}

bool LaneSet::stopping() const {
  MutexLock lock(mutex_);
  return stopping_;
}

std::optional<BlockRun> LaneSet::Take(uint32_t lane) {
  MutexLock lock(mutex_);
  const auto next = options_->standing ? std::ranges::find(runs_, lane, &BlockRun::first) : runs_.begin();
  if (stopping_ || next == runs_.end()) return std::nullopt;
  const BlockRun run = *next;
  runs_.erase(next);
  ++taken_;
  return run;
}

void LaneSet::WantSpares() {
  MutexLock lock(mutex_);
  if (std::exchange(spares_wanted_, true)) return;
  WakeAll();
}

bool LaneSet::spares_wanted() const {
  MutexLock lock(mutex_);
  return spares_wanted_;
}

void LaneSet::Count(uint64_t payload_bytes, Clock::time_point now) {
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

void LaneSet::Return(std::optional<BlockRun> rest) {
  MutexLock lock(mutex_);
  --taken_;
  ++progress_;
  if (rest && failure_.ok()) {
    runs_.push_front(*rest);
    WakeAll();
  }
  if (Settled()) changed_.notify_all();
}

void LaneSet::Refuse(Status why) {
  MutexLock lock(mutex_);
  --taken_;
  Fail(std::move(why));
  changed_.notify_all();
}

void LaneSet::WantTicket(std::shared_ptr<Lane> lane) {
  MutexLock lock(mutex_);
  ++counters_.retries;
  wanting_tickets_.push_back(std::move(lane));
  changed_.notify_all();
}

void LaneSet::Leave(Status status) {
  MutexLock lock(mutex_);
  if (!status.ok()) {
    // Losses that follow from the first one say less.
    if (!options_->standing || last_loss_.ok()) last_loss_ = std::move(status);
    spares_wanted_ = true;
    WakeAll();
  }
  --present_;
  changed_.notify_all();
}

void LaneSet::WakeAll() {
  for (const auto& lane : lanes_) lane->Wake();
}

Status LaneSet::lost() const {
  MutexLock lock(mutex_);
  return last_loss_;
}

SourceCounters LaneSet::counters() const {
  MutexLock lock(mutex_);
  SourceCounters counters = counters_;
  if (options_->peer.InPlaintext()) counters.plain_bytes = counters.payload_bytes;
  return counters;
}

}  // namespace lockstep::pull
