// ServeSpan: when a lane served, and how much (common/telemetry/timeline.h, "serve").
//
// A pull's lane has one span, from its first request to the last byte it was sent; a standing pull's lane has one
// for every delta.
#pragma once

#include <optional>

#include "common/telemetry/timeline.h"
#include "trainer_agent/serve/pull.h"

namespace lockstep::serve {

// Used by the one coroutine that owns the lane.
class ServeSpan {
 public:
  // `timeline` (null: nothing is recorded) and `pull` outlive this; `lane` distinguishes it from the pull's others.
  ServeSpan(telemetry::Timeline* timeline, const Pull& pull, uint32_t lane)
      : timeline_(timeline), pull_(pull), lane_(lane) {}
  ~ServeSpan() {
    if (!pull_.standing()) End(pull_.target);
  }
  ServeSpan(const ServeSpan&) = delete;
  ServeSpan& operator=(const ServeSpan&) = delete;

  // Opens a span, unless one is open. Called when the receiver asks for something.
  void Begin() {
    if (!begun_) Restart();
  }
  // Drops the open span, if there is one, and opens another. Called when the version that was being served was aborted.
  void Restart() {
    begun_.emplace();
    ended_ = std::chrono::steady_clock::now();
    bytes_ = 0;
  }
  void Sent(uint64_t bytes) {
    bytes_ += bytes;
    ended_ = std::chrono::steady_clock::now();
  }
  // Closes the span that is open, which served version `towards`.
  void End(Version towards) {
    if (!begun_) return;
    telemetry::Span span{.name = "serve",
                         .model = pull_.run->model(),
                         .run = pull_.run->run(),
                         .version = towards,
                         .transfer = pull_.id,
                         .bytes = bytes_,
                         .lane = lane_};
    telemetry::AddSpan(timeline_, std::move(span), *begun_, ended_);
    begun_.reset();
  }

 private:
  telemetry::Timeline* const timeline_;
  const Pull& pull_;
  const uint32_t lane_;
  std::optional<telemetry::Moment> begun_;
  std::chrono::steady_clock::time_point ended_;
  uint64_t bytes_ = 0;
};

}  // namespace lockstep::serve
