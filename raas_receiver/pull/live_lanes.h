// The data plane of a live subscription: lanes on which the blocks of the next delta come while the trainer still
// writes it (common/wire/FORMAT.md, "Live").
//
// Nothing depends on them: when one breaks, all of them are closed, and the delta is pulled as any other.
// Connections are idle between versions, for hours; the system's keepalive finds peers that are gone.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/net/io_threads.h"
#include "common/payload/payload.h"
#include "raas_receiver/pull/lane_peer.h"

namespace lockstep::pull {

class LiveCollector;
class LiveLane;

// The session's thread calls; Cancel may be called from any.
class LiveLanes {
 public:
  // Starts connecting. REQUIRES at least one ticket; `io` outlives this.
  LiveLanes(net::IoThreads& io, LanePeer peer);
  ~LiveLanes();  // closes the lanes
  LiveLanes(const LiveLanes&) = delete;
  LiveLanes& operator=(const LiveLanes&) = delete;

  // Asks every lane for its share of the delta from `base` on, and forgets what came before. Waits for nothing.
  // REQUIRES the answer to what was asked before to have ended (Take), or the lanes to have failed.
  void Ask(Version base);

  // All blocks of the delta that was asked for, once every lane's share has ended; kDeadline when no block came and no
  // share ended for `patience`: nothing is being made. Blocks are checked as those of any delta: each in its share,
  // once, with its hashes, of one target, their bytes together at most the model's. kAborted: the version was aborted;
  // the lanes live on and may be asked again. kState: the agent has another newest version; they live on too. Any
  // other: the lanes are of no more use.
  struct Delta {
    Version base = 0;
    Version target = 0;
    std::vector<payload::DeltaBlock> blocks;
    std::chrono::steady_clock::time_point begun;  // when the first block was here
    std::chrono::steady_clock::time_point ended;  // and the last one
  };
  Result<Delta> Take(std::chrono::milliseconds patience);

  // OK while the lanes may be asked.
  Status status() const;
  uint64_t received_bytes() const;  // of blocks' coded data, since the last Ask

  // Makes Take fail soon with kCancelled.
  void Cancel();

 private:
  const std::shared_ptr<LiveCollector> collector_;
  std::vector<std::shared_ptr<LiveLane>> lanes_;
};

}  // namespace lockstep::pull
