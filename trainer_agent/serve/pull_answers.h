// Sends what a lane of a pull asks for: full blocks from memory, and the entries of a delta.
#pragma once

#include "trainer_agent/serve/lane_writer.h"

namespace lockstep::serve {

// For the one coroutine that owns the lane, which ends it after an error. `pull` and `writer` outlive the call.

// Blocks of the version that the request names, or else of the pull's target and what came after it.
asio::awaitable<Result<LaneAnswer>> SendFull(const wire::BlockRequest& request, Pull& pull, LaneWriter& writer);
asio::awaitable<Result<LaneAnswer>> SendDelta(const wire::BlockRequest& request, Pull& pull, LaneWriter& writer);

}  // namespace lockstep::serve
