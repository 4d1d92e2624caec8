// ServedLane: one admitted lane, from its first request to its end.
#pragma once

#include <asio.hpp>
#include <chrono>
#include <memory>

#include "common/base/status.h"
#include "common/wire/frame.h"
#include "trainer_agent/serve/bell.h"
#include "trainer_agent/serve/lane_limits.h"
#include "trainer_agent/serve/lane_writer.h"
#include "trainer_agent/serve/pull_table.h"
#include "trainer_agent/serve/serve_span.h"

namespace lockstep {

struct LaneTimeouts {
  std::chrono::milliseconds idle{120'000};  // between requests; lanes of live subscriptions have none
  std::chrono::milliseconds send{60'000};   // for one burst of frames
};

// Runs on the strand of `socket`; everything it is given outlives it.
class ServedLane {
 public:
  ServedLane(asio::ip::tcp::socket& socket, const LaneTimeouts& timeouts, Pull& pull, LanePace pace,
             std::shared_ptr<BellGate> gate, ServeSpan& span);

  // Until the peer closes (OK) or the lane fails.
  asio::awaitable<Status> Run();

 private:
  asio::awaitable<Status> Answer(const BlockRequest& request);
  asio::awaitable<Status> SendFull(const BlockRequest& request);
  asio::awaitable<Status> SendDelta(const BlockRequest& request);
  asio::awaitable<Status> SendLive(const BlockRequest& request);

  Result<uint32_t> SendBlocks(const BlockRequest& request, BlockIndex first, uint32_t count);
  asio::awaitable<Result<std::shared_ptr<LiveDelta>>> UntilBegun(Version base);
  asio::awaitable<Status> SendShare(const BlockRequest& request, const LiveDelta& delta,
                                    const std::vector<std::shared_ptr<const DeltaBlock>>& blocks);
  asio::awaitable<Status> UntilRung();
  asio::awaitable<Status> FlushPaced();
  asio::awaitable<void> WaitForPace(uint64_t bytes);
  void Sent(uint64_t bytes);
  void WatchPeer();

  asio::ip::tcp::socket& socket_;
  const LaneTimeouts& timeouts_;
  Pull& pull_;
  LanePace pace_;
  ServeSpan& span_;
  LaneWriter writer_;
  const std::shared_ptr<Bell> bell_;
  std::shared_ptr<bool> peer_spoke_;  // null: nobody watches for it
  uint32_t sent_ = 0;                 // frames of the request in hand
  bool end_sent_ = false;             // and its end went along with the last of them
  Version live_target_ = 0;           // that a live answer has led to
  Status refusal_;                    // why the request in hand cannot be answered in full
};

}  // namespace lockstep
