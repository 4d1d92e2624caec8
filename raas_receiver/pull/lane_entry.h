// How a lane begins: it says hello, and is let in.
#pragma once

#include <asio.hpp>
#include <chrono>

#include "common/base/bytes.h"
#include "common/base/ids.h"
#include "common/base/status.h"

namespace lockstep {

struct LaneEntry {
  uint64_t pull_id = 0;
  Ticket ticket;
  uint32_t lane = 0;  // which one this is, for logs
};

// The sealed hello, to be sent first. Requests may go along with it: an agent that does not let the lane in reads none.
Bytes HelloOf(const LaneEntry& entry);

// Reads the agent's answer. Its own code when it refuses.
asio::awaitable<Status> ReadWelcome(asio::ip::tcp::socket& socket, std::chrono::milliseconds timeout);

}  // namespace lockstep
