// The data plane of a live subscription: lanes on which the blocks of the next delta come while the trainer still
// writes it (common/wire/FORMAT.md, "Live").
//
// Nothing depends on them: when one breaks, all of them are closed, and the delta is pulled as any other.
// Connections are idle between versions, for hours; the system's keepalive finds peers that are gone.
#pragma once

#include <memory>
#include <vector>

#include "common/net/io_threads.h"
#include "raas_receiver/pull/lane_peer.h"
#include "raas_receiver/pull/live_collector.h"

namespace lockstep::pull {

class LiveLane;

// Used by the session's thread.
class LiveLanes {
 public:
  // Starts connecting. REQUIRES at least one ticket; `io` outlives this.
  LiveLanes(net::IoThreads& io, LanePeer peer);
  ~LiveLanes();  // closes the lanes
  LiveLanes(const LiveLanes&) = delete;
  LiveLanes& operator=(const LiveLanes&) = delete;

  // Asks every lane for its share of the delta from `base` on, and forgets what came before. Waits for nothing.
  // REQUIRES the answer to what was asked before to have ended (LiveCollector::Take), or the lanes to have failed.
  void Ask(Version base);

  // What comes of it.
  LiveCollector& collected() const { return *collector_; }

 private:
  const std::shared_ptr<LiveCollector> collector_;
  std::vector<std::shared_ptr<LiveLane>> lanes_;
};

}  // namespace lockstep::pull
