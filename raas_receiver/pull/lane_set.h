// LaneSet: the lanes of one pull, which share a queue of block runs.
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
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/net/io_threads.h"
#include "raas_receiver/pull/block_run.h"
#include "raas_receiver/pull/block_source.h"
#include "raas_receiver/pull/lane_peer.h"
#include "raas_receiver/pull/run_queue.h"

namespace lockstep::pull {

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

class LaneSet final : public BlockSource {
 public:
  // REQUIRES at least one ticket; `io` outlives the set.
  LaneSet(net::IoThreads& io, LaneOptions options, RenewTickets renew);
  ~LaneSet() override;  // closes the lanes
  LaneSet(const LaneSet&) = delete;
  LaneSet& operator=(const LaneSet&) = delete;

  std::string_view name() const override { return "lanes"; }
  Status FetchBlocks(const FullRequest& request, BlockSink& sink) override;
  Status FetchDeltas(const DeltaRequest& request, DeltaSink& sink) override;

  // Fetches every block of `runs` into `sink`. Returns the agent's own error when the agent refused a request; the
  // lanes live on then. Any other error is the last lane's, names peer, lane and block, and means that no lane is left.
  Status Fetch(const std::vector<BlockRun>& runs, BlockSink& sink);
  // Fetch() in two calls. Post() returns at once. Wait() returns as Fetch(), or kDeadline when nothing came for
  // `patience` (no value: no limit); the caller may then wait again. REQUIRES the fetch before to have ended.
  void Post(const std::vector<BlockRun>& runs, BlockSink& sink);
  Status Wait(std::optional<std::chrono::milliseconds> patience = std::nullopt);
  // As RunQueue::lost().
  Status lost() const { return queue_->lost(); }

  void Cancel() override { queue_->Stop(); }
  SourceCounters counters() const override;

 private:
  void Start();

  net::IoThreads& io_;
  const std::shared_ptr<const LaneOptions> options_;
  const RenewTickets renew_;
  const std::shared_ptr<RunQueue> queue_;
  bool started_ = false;
};

}  // namespace lockstep::pull
