// LanePeer: where the lanes of one pull connect to, and what lets each of them in.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/ids.h"
#include "common/model/layout.h"
#include "common/net/host_port.h"
#include "common/net/networks.h"
#include "common/net/tls_session.h"

namespace lockstep::pull {

struct LanePeer {
  net::HostPort agent;
  uint64_t pull_id = 0;
  std::shared_ptr<const model::ModelLayout> layout;
  std::vector<Ticket> tickets;                           // one per lane
  std::shared_ptr<const net::TlsContext> tls = nullptr;  // lanes are encrypted; null: they are plain
  net::Networks plain;                                   // where the agent may be for plain ones
  std::chrono::milliseconds connect_timeout{5'000};

  // Whether others may read on the way what comes by the lanes.
  bool InPlaintext() const { return tls == nullptr && !agent.IsLoopback(); }
};

}  // namespace lockstep::pull
