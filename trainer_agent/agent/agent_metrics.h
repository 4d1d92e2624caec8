// The agent's metrics for Prometheus (docs/metrics.md has the page).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/metrics/metrics.h"
#include "proto/lockstep/v1/agent.pb.h"

namespace lockstep::agent {

// The values that the table reads, made for each scrape.
struct AgentFacts {
  v1::AgentStatus status;
  std::optional<uint64_t> segments_free_bytes;  // nothing: they have no directory, or it cannot be looked at
  std::optional<std::chrono::system_clock::time_point> certificate_end;  // nothing without TLS
};

const std::vector<metrics::Row<AgentFacts>>& AgentTable();

}  // namespace lockstep::agent
