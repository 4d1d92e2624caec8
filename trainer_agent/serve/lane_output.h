// LaneOutput: what one lane sends: frames, at the lane's pace, counted in its span.
#pragma once

#include <chrono>

#include "common/wire/frame.h"
#include "trainer_agent/serve/lane_limits.h"
#include "trainer_agent/serve/lane_writer.h"
#include "trainer_agent/serve/pull.h"
#include "trainer_agent/serve/serve_span.h"

namespace lockstep::serve {

// What became of a request, before its end or error is sent.
struct LaneAnswer {
  Status refusal;         // not OK: why it cannot be answered in full
  uint32_t frames = 0;    // sent for it
  Version target = 0;     // of a live request: what the delta has led to
  bool end_sent = false;  // along with the last frame
};

// Used by the one coroutine that owns the lane. After an error the lane is to be closed.
class LaneOutput {
 public:
  // `timeout` is for each burst. Everything given outlives this.
  LaneOutput(asio::ip::tcp::socket& socket, std::chrono::milliseconds timeout, LanePace pace, Pull& pull,
             ServeSpan& span)
      : socket_(socket),
        timeout_(timeout),
        pace_(std::move(pace)),
        pull_(pull),
        span_(span),
        writer_(socket, timeout) {}

  // Frames go in here; Flush() sends them.
  LaneWriter& writer() { return writer_; }

  // Waits for the lane's turn, then sends everything that was added.
  asio::awaitable<Status> Flush();
  // For what is sent without Flush(): waits for the lane's turn to send `bytes`, counts those that were sent, waits
  // until the socket takes more.
  asio::awaitable<void> WaitForPace(uint64_t bytes);
  void Sent(uint64_t bytes);
  asio::awaitable<Status> UntilWritable();

 private:
  asio::ip::tcp::socket& socket_;
  const std::chrono::milliseconds timeout_;
  LanePace pace_;
  Pull& pull_;
  ServeSpan& span_;
  LaneWriter writer_;
};

}  // namespace lockstep::serve
