// TrackedExchange: an Exchange that remembers which peers it lost. A peer that failed once gets no further message,
// since it is unknown which of its messages would come next. The other peers are served as before.
#pragma once

#include <cstdint>
#include <set>

#include "export_plugin/exporter/exchange.h"

namespace lockstep::exporter {

// Not thread-safe.
class TrackedExchange {
 public:
  // A message on its way, or none.
  struct Pending {
    Exchange::Transfer transfer = 0;
    uint32_t peer = 0;
  };

  explicit TrackedExchange(Exchange* exchange) : exchange_(exchange) {}

  // Starts a message. Does nothing when the peer is lost. A peer whose message cannot be started is lost: see Alive().
  Pending Send(uint32_t peer, const void* data, uint64_t bytes);
  Pending Receive(uint32_t peer, void* data, uint64_t bytes);
  // Waits for `pending`, if it is a message, and clears it. A peer whose message fails is lost.
  void Wait(Pending& pending);

  bool Alive(uint32_t peer) const { return lost_.count(peer) == 0; }
  // kUnavailable from the first loss on: which peer, and how.
  const Status& status() const { return first_loss_; }
  // Records that the peer takes no more messages.
  void Lose(uint32_t peer, const Status& reason);

 private:
  Exchange* const exchange_;
  std::set<uint32_t> lost_;
  Status first_loss_;
};

}  // namespace lockstep::exporter
