// The data plane of one pull: N lanes that share a queue of block runs.
//
// Fetch() hands runs to the lanes and returns when every block has arrived, checked, at the sink. It may be called
// several times (the payload, what a full pull has to catch up, a repair); lanes stay connected in between. Each lane
// keeps as many requests outstanding as the link swallows, so load spreads by itself; on a near link only the first few
// lanes are opened. A lane that breaks, stalls or breaks the rules gives
// back what it has not received, and is opened again with a new ticket; when it has failed too often without receiving
// anything it is given up, and the pull fails only when no lane is left.
//
// Threads: Fetch is called by one thread at a time, Cancel by any. The sink is called by I/O threads, by several at
// once but for one block at a time. Nothing calls the sink after Fetch has returned.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "common/net/host_port.h"
#include "common/net/io_threads.h"
#include "common/wire/frame.h"
#include "raas_receiver/pull/block_run.h"
#include "raas_receiver/pull/run_board.h"

namespace lockstep {

struct LaneOptions {
  HostPort agent;
  uint64_t pull_id = 0;
  std::shared_ptr<const ModelLayout> layout;
  std::vector<Ticket> tickets;  // one per lane
  size_t outstanding = 2;       // requests per lane at least; more on links that hold more (request_pace.h)
  std::chrono::milliseconds connect_timeout{5'000};
  std::chrono::milliseconds silence_timeout{30'000};  // no 64 KiB, where more is due, for so long: the lane is broken
  std::chrono::milliseconds first_backoff{100};       // doubled with every failure in a row
  int attempts = 5;                                   // failures in a row before a lane is given up
};

// New tickets for `lanes` broken lanes; fewer are allowed. Called on the thread that is in Fetch. kNotFound: the pull
// is over.
using RenewTickets = std::function<Result<std::vector<Ticket>>(size_t lanes)>;

class LaneSet {
 public:
  // Starts connecting. REQUIRES at least one ticket; `io` outlives the set.
  LaneSet(IoThreads& io, LaneOptions options, RenewTickets renew);
  ~LaneSet();  // closes the lanes
  LaneSet(const LaneSet&) = delete;
  LaneSet& operator=(const LaneSet&) = delete;

  // OK: every block of `runs` is in the sink. kCancelled after Cancel(). The agent's own error when it refused a
  // request; the lanes live on then. Otherwise what the last lane died of, naming peer, lane and block, and the set is
  // of no more use.
  Status Fetch(const std::vector<BlockRun>& runs, BlockSink& sink);

  // Makes the running and every later Fetch fail soon.
  void Cancel();

  LaneCounters counters() const { return board_->counters(); }

 private:
  RenewTickets renew_;
  std::shared_ptr<RunBoard> board_;
};

}  // namespace lockstep
