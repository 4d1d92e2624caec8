// ServedLane: one admitted lane, from its first request to its end.
//
// The lane reads requests and ends each of them; pull_answers.h and StreamingAnswers send what is asked for.
#pragma once

#include <asio.hpp>
#include <chrono>
#include <memory>

#include "common/base/status.h"
#include "common/wire/frame.h"
#include "trainer_agent/serve/lane_writer.h"
#include "trainer_agent/serve/streaming_answers.h"

namespace lockstep::serve {

struct LaneTimeouts {
  std::chrono::milliseconds idle{120'000};  // between requests; lanes of standing pulls have none
  std::chrono::milliseconds send{60'000};   // for one burst of frames
};

// Runs on the strand of `stream`; everything it is given outlives it.
class ServedLane {
 public:
  ServedLane(net::PeerStream& stream, const LaneTimeouts& timeouts, Pull& pull, LanePace pace,
             std::shared_ptr<WakeupGate> gate, ServeSpan& span);

  // Until the peer closes (OK) or the lane fails.
  asio::awaitable<Status> Run();

 private:
  asio::awaitable<Status> Answer(const wire::BlockRequest& request);
  asio::awaitable<Result<LaneAnswer>> Send(const wire::BlockRequest& request);

  net::PeerStream& stream_;
  const std::chrono::milliseconds idle_timeout_;
  Pull& pull_;
  ServeSpan& span_;
  LaneWriter writer_;
  StreamingAnswers streaming_answers_;
};

}  // namespace lockstep::serve
