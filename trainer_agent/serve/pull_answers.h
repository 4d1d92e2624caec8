// PullAnswers: what a pull's lane answers: full blocks from memory, and the entries of a delta.
#pragma once

#include "trainer_agent/serve/lane_output.h"

namespace lockstep::serve {

// Used by the one coroutine that owns the lane. An error ends the lane.
class PullAnswers {
 public:
  // Both outlive this.
  PullAnswers(Pull& pull, LaneOutput& output) : pull_(pull), output_(output) {}

  // Blocks of the version that the request names, or else of the pull's target and what came after it.
  asio::awaitable<Result<LaneAnswer>> SendFull(const wire::BlockRequest& request);
  asio::awaitable<Result<LaneAnswer>> SendDelta(const wire::BlockRequest& request);

 private:
  Result<uint32_t> SendBlocks(const wire::BlockRequest& request, LaneAnswer& answer, uint32_t count);

  Pull& pull_;
  LaneOutput& output_;
};

}  // namespace lockstep::serve
