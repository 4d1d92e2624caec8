// The receiver's metrics for Prometheus (docs/metrics.md has the page).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/metrics/metrics.h"
#include "proto/lockstep/v1/receiver.pb.h"

namespace lockstep::receiver {

// The values that the table reads, made for each scrape.
struct ReceiverFacts {
  v1::ReceiverStatus status;
  std::optional<uint64_t> root_free_bytes;                               // nothing: it cannot be looked at
  std::optional<std::chrono::system_clock::time_point> certificate_end;  // nothing without TLS
};

const std::vector<metrics::Row<ReceiverFacts>>& ReceiverTable();

}  // namespace lockstep::receiver
