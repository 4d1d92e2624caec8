// LaneSet: the lanes of one pull, with the block runs that are still to be asked for.
//
// A fetch hands runs to the lanes and returns when the sink has every block, checked. A pull may fetch several times
// (deltas, the blocks that a full pull must catch up, a repair). The lanes connect for the first fetch and stay
// connected between fetches. Each lane keeps as many requests outstanding as the link needs, so the load spreads by
// itself; on a near link only the first few lanes are opened.
//
// A lane that fails, stalls or breaks a rule returns the blocks that it has not received to the queue, and is opened
// again with a new ticket. A lane that has failed too often without receiving a block is abandoned. A fetch fails only
// when the agent refuses a request, or no lane is left. I/O threads call the sink.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/net/io_threads.h"
#include "raas_receiver/pull/block_run.h"
#include "raas_receiver/pull/block_source.h"
#include "raas_receiver/pull/lane_peer.h"

namespace lockstep::pull {

class Lane;

struct LaneOptions {
  LanePeer peer;
  size_t outstanding = 2;                             // requests per lane at least; more on links that hold more
  std::chrono::milliseconds silence_timeout{30'000};  // a lane that owes more and brings no 64 KiB for so long fails
  std::chrono::milliseconds first_backoff{100};       // doubled with every failure in a row
  int attempts = 5;                                   // failures in a row before a lane is abandoned
  // Whether the lanes are those of a standing pull: each lane makes one request for blocks that are still to be made,
  // and waits for the answer without a limit. A lane that is lost ends the fetch.
  bool standing = false;
};

// Returns new tickets for `lanes` broken lanes, or fewer. The fetching thread calls it. kNotFound: the pull is over.
using RenewTickets = std::function<Result<std::vector<Ticket>>(size_t lanes)>;

// One thread fetches; Cancel, counters and lost may be called from any. Lanes run on I/O threads.
class LaneSet final : public BlockSource {
 public:
  using Clock = std::chrono::steady_clock;

  // REQUIRES at least one ticket; `io` outlives the set.
  LaneSet(net::IoThreads& io, LaneOptions options, RenewTickets renew);
  ~LaneSet() override;  // closes the lanes, and waits until they have left
  LaneSet(const LaneSet&) = delete;
  LaneSet& operator=(const LaneSet&) = delete;

  std::string_view name() const override { return "lanes"; }
  Status FetchBlocks(const FullRequest& request, BlockSink& sink) override;
  Status FetchDeltas(const DeltaRequest& request, DeltaSink& sink) override;

  // Fetches every block of `runs` into `sink`. Returns the agent's own error when the agent refused a request; the
  // lanes live on then. Any other error is the last lane's, names peer, lane and block, and means that no lane is left.
  Status Fetch(const std::vector<BlockRun>& runs, BlockSink& sink);
  // Fetch() in two calls. Post() returns at once. Wait() returns as Fetch(), or kDeadline when nothing came for
  // `patience` (no value: no limit). REQUIRES the fetch before to have ended.
  void Post(const std::vector<BlockRun>& runs, BlockSink& sink);
  Status Wait(std::optional<std::chrono::milliseconds> patience = std::nullopt);
  // Why the last lane was abandoned; of a standing pull, the first one. OK: none was.
  Status lost() const;

  void Cancel() override;
  SourceCounters counters() const override;

  // --- calls of a lane, until it has left ---
  bool stopping() const;
  // Has spare lanes open. Called when the link proved long, or a lane was abandoned.
  void WantSpares();
  bool spares_wanted() const;
  // Takes a run to ask for; of a standing pull, the run of this lane. The lane must call Return or Refuse for it.
  std::optional<BlockRun> Take(uint32_t lane);
  BlockSink& sink() const { return *sink_; }  // REQUIRES a run taken
  void Count(uint64_t payload_bytes, Clock::time_point now);
  // Gives a taken run back: `rest` is what must be asked for again; no value: the run is done.
  void Return(std::optional<BlockRun> rest);
  // Fails the fetch with `why`. Called when the agent refused a taken run.
  void Refuse(Status why);
  void WantTicket(std::shared_ptr<Lane> lane);
  // Removes the lane: OK after Cancel; else it is abandoned because of `status`. The set may be gone on return.
  void Leave(Status status);

 private:
  void Start();
  bool Settled() const LS_REQUIRES(mutex_);
  void Fail(Status status) LS_REQUIRES(mutex_);
  void WakeAll() LS_REQUIRES(mutex_);
  void ServeTickets(const std::vector<std::shared_ptr<Lane>>& lanes) const;

  net::IoThreads& io_;
  const std::shared_ptr<const LaneOptions> options_;
  const RenewTickets renew_;
  bool started_ = false;

  mutable Mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Lane>> lanes_ LS_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Lane>> wanting_tickets_ LS_GUARDED_BY(mutex_);
  std::deque<BlockRun> runs_ LS_GUARDED_BY(mutex_);  // still to be asked for
  BlockSink* sink_ = nullptr;
  size_t taken_ LS_GUARDED_BY(mutex_) = 0;       // runs that lanes hold
  uint64_t progress_ LS_GUARDED_BY(mutex_) = 0;  // blocks, and ends of runs
  size_t present_ LS_GUARDED_BY(mutex_) = 0;     // lanes that have not left
  bool stopping_ LS_GUARDED_BY(mutex_) = false;
  bool spares_wanted_ LS_GUARDED_BY(mutex_) = false;
  Status failure_ LS_GUARDED_BY(mutex_);    // of the current fetch
  Status last_loss_ LS_GUARDED_BY(mutex_);  // as lost()
  SourceCounters counters_ LS_GUARDED_BY(mutex_);

  // Of the current fetch: its blocks come from the first one's end to the last one's.
  Clock::time_point first_block_ LS_GUARDED_BY(mutex_);
  Clock::time_point last_block_ LS_GUARDED_BY(mutex_);
  uint64_t bytes_after_first_ LS_GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep::pull
