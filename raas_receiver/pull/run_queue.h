// RunQueue: where the lanes of one pull and the thread that waits for them meet: the runs to be asked for, and what has
// become of them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "raas_receiver/pull/block_run.h"
#include "raas_receiver/pull/block_source.h"

namespace lockstep::pull {

// RunConsumer: a lane, as the queue sees it. Any thread may call it; its calls return at once.
class RunConsumer {
 public:
  virtual ~RunConsumer() = default;
  virtual void Wake() = 0;  // called when there may be a run to take, or the queue stops
  virtual void GiveTicket(Result<Ticket> ticket) = 0;
};

// Thread-safe.
class RunQueue {
 public:
  using Clock = std::chrono::steady_clock;

  // `standing`: as LaneOptions.
  explicit RunQueue(bool standing = false) : standing_(standing) {}

  // --- the thread in LaneSet::Fetch ---
  void Join(std::shared_ptr<RunConsumer> lane);
  void Post(const std::vector<BlockRun>& runs, BlockSink& sink);
  // Waits until the posted runs are done, or one failed and no lane holds another. Calls `renew` for lanes that want
  // tickets. With `patience`: kDeadline when nothing came for so long.
  Status Wait(const std::function<Result<std::vector<Ticket>>(size_t lanes)>& renew,
              std::optional<std::chrono::milliseconds> patience);
  // Makes every lane stop; waits for none.
  void Stop();
  // Waits until every lane has left, and forgets them.
  void WaitForLanes();

  // --- lanes ---
  bool stopping() const;
  // Has spare lanes open. Called when the link proved long, or a lane was abandoned.
  void WantSpares();
  bool spares_wanted() const;
  // Takes a run to ask for; of a standing pull, the run of this lane. The lane must call Return or Refuse for it.
  std::optional<BlockRun> Take(uint32_t lane = 0);
  BlockSink& sink() const { return *sink_; }  // REQUIRES a run taken
  void Count(uint64_t payload_bytes, Clock::time_point now);
  // Gives a taken run back: `rest` is what must be asked for again; no value: the run is done.
  void Return(std::optional<BlockRun> rest);
  // Fails the current Post with `why`. Called when the agent refused a taken run.
  void Refuse(Status why);
  void WantTicket(std::shared_ptr<RunConsumer> lane);
  // Removes the lane: OK after Stop(); else it is abandoned because of `status`.
  void Leave(Status status);

  SourceCounters counters() const;
  // Why the last lane was abandoned; of a standing pull, the first one. OK: none was.
  Status lost() const;

 private:
  bool Settled() const LS_REQUIRES(mutex_);
  void Fail(Status status) LS_REQUIRES(mutex_);
  void WakeAll() LS_REQUIRES(mutex_);
  void ServeTickets(const std::vector<std::shared_ptr<RunConsumer>>& lanes,
                    const std::function<Result<std::vector<Ticket>>(size_t lanes)>& renew);

  const bool standing_;
  mutable Mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<RunConsumer>> lanes_ LS_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<RunConsumer>> wanting_tickets_ LS_GUARDED_BY(mutex_);
  std::deque<BlockRun> queue_ LS_GUARDED_BY(mutex_);
  BlockSink* sink_ = nullptr;
  size_t taken_ LS_GUARDED_BY(mutex_) = 0;       // runs that lanes hold
  uint64_t progress_ LS_GUARDED_BY(mutex_) = 0;  // blocks, and ends of runs
  size_t present_ LS_GUARDED_BY(mutex_) = 0;     // lanes that have not left
  bool stopping_ LS_GUARDED_BY(mutex_) = false;
  bool spares_wanted_ LS_GUARDED_BY(mutex_) = false;
  Status failure_ LS_GUARDED_BY(mutex_);    // of the current Post
  Status last_loss_ LS_GUARDED_BY(mutex_);  // why the last lane left
  SourceCounters counters_ LS_GUARDED_BY(mutex_);

  // Of the current Post: its blocks come from the first one's end to the last one's.
  Clock::time_point first_block_ LS_GUARDED_BY(mutex_);
  Clock::time_point last_block_ LS_GUARDED_BY(mutex_);
  uint64_t bytes_after_first_ LS_GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep::pull
