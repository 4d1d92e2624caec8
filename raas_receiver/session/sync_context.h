// SyncContext: what all syncs of a session share.
#pragma once

#include <cstdint>
#include <string>

#include "common/net/io_threads.h"
#include "common/telemetry/timeline.h"
#include "raas_receiver/replica/replica_pair.h"
#include "raas_receiver/session/agent_client.h"
#include "raas_receiver/session/live_link.h"

namespace lockstep::session {

struct SyncContext {
  std::string model;
  std::string receiver;
  size_t lanes = 4;
  AgentClient& agent;
  replica::ReplicaPair& replicas;
  net::IoThreads& io;
  LiveLink& live;
  telemetry::Timeline* timeline = nullptr;
};

}  // namespace lockstep::session
