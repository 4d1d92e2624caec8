// A trainer's agent as an origin: announced, planned and reported by gRPC, pulled from its memory where that is on this
// host, else over lanes; on lanes, deltas are asked for while they are made.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "common/base/worker_pool.h"
#include "common/net/host_port.h"
#include "common/net/io_threads.h"
#include "common/rpc/tls.h"
#include "common/telemetry/timeline.h"
#include "raas_receiver/origin/origin.h"

namespace lockstep::origin {

struct AgentOriginOptions {
  std::string model;
  std::string receiver;  // this receiver's name
  std::string instance;  // 16 bytes: this process
  net::ControlAddress agent;
  rpc::TlsOptions tls;  // of calls to the agent
  size_t lanes = 4;
  bool streaming = true;    // take deltas while they are made
  bool takes_part = false;  // the agent may have a part of the model
  // How long a fetch waits for a streaming delta of which nothing comes: an announced version was begun long ago, and
  // its first blocks are at most a round trip away.
  std::chrono::milliseconds patience{2'000};
  telemetry::Timeline* timeline = nullptr;  // where spans go, when not null; outlives the origin
};

// `io` runs lanes, `pool` copies from memory; both outlive the origin.
std::unique_ptr<Origin> NewAgentOrigin(AgentOriginOptions options, net::IoThreads& io, WorkerPool& pool);

}  // namespace lockstep::origin
