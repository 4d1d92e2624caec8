#include "raas_receiver/pull/live_lanes.h"

#include "raas_receiver/pull/live_lane.h"

namespace lockstep::pull {

LiveLanes::LiveLanes(net::IoThreads& io, LanePeer peer)
    : collector_(std::make_shared<LiveCollector>(peer.layout, peer.tickets.size())) {
  const auto shared_peer = std::make_shared<const LanePeer>(std::move(peer));
  for (uint32_t share = 0; share < shared_peer->tickets.size(); ++share) {
    lanes_.push_back(std::make_shared<LiveLane>(io, shared_peer, collector_, share));
    lanes_.back()->Start();
  }
}

LiveLanes::~LiveLanes() {
  for (const auto& lane : lanes_) lane->Stop();
  collector_->WaitForLanes();
}

void LiveLanes::Ask(Version base) {
  collector_->Begin(base);
  for (const auto& lane : lanes_) lane->Wake();
}

}  // namespace lockstep::pull
