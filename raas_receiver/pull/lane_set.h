// The data plane of one pull: N lanes that share a queue of block runs.
//
// A fetch hands runs to the lanes and returns when every block has arrived, checked, at the sink. There may be several
// (the deltas, what a full pull has to catch up, a repair); lanes connect for the first one and stay connected in
// between. Each lane keeps as many requests outstanding as the link swallows, so load spreads by itself; on a near link
// only the first few lanes are opened. A lane that breaks, stalls or breaks the rules returns what it has not received
// to the queue, and is opened again with a new ticket; when it has failed too often without receiving anything it is
// abandoned, and the fetch fails only when no lane is left.
//
// The sink is called by I/O threads.
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
  std::chrono::milliseconds silence_timeout{30'000};  // no 64 KiB, where more is due, for so long: the lane is broken
  std::chrono::milliseconds first_backoff{100};       // doubled with every failure in a row
  int attempts = 5;                                   // failures in a row before a lane is abandoned
  // Requests wait for what is still to be made: each lane has one of its own, and waits for its answer for as
  // long as that takes. A lane that is lost is the end of what is waited for.
  bool standing = false;
};

// New tickets for `lanes` broken lanes; fewer are allowed. Called on the thread that fetches. kNotFound: the pull
// is over.
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

  // What both of them come to. OK: every block of `runs` is in the sink. The agent's own error when it refused a
  // request; the lanes live on then. Otherwise what the last lane died of, naming peer, lane and block, and the set is
  // of no more use.
  Status Fetch(const std::vector<BlockRun>& runs, BlockSink& sink);
  // The same in two: Post returns at once; REQUIRES nothing else to be in work. Wait answers kDeadline, too, when
  // nothing came for `patience` (none: as long as it takes): it may be called again.
  void Post(const std::vector<BlockRun>& runs, BlockSink& sink);
  Status Wait(std::optional<std::chrono::milliseconds> patience = std::nullopt);
  // As RunQueue's.
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
