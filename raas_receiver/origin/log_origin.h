// A log in a directory or an object store as an origin (common/versionlog/FORMAT.md). A pull of every block makes them
// in place, each from its chunk and the deltas after it, so that none is ever of another version.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "common/base/worker_pool.h"
#include "common/objects/object_store.h"
#include "common/versionlog/keys.h"
#include "common/versionlog/log_reader.h"
#include "raas_receiver/origin/origin.h"

namespace lockstep::origin {

struct LogOriginOptions {
  std::string model;
  std::shared_ptr<objects::ObjectStore> store;
  versionlog::TrustedKeys trusted;  // none: heads need no signature
  std::string remembered_path;      // file that remembers the head read last; empty: none
  size_t connections = 4;           // objects that are read side by side
  // Of deltas that are in memory at once; a larger one comes alone.
  uint64_t memory_bytes = versionlog::kLogMemoryBytes;
  std::chrono::milliseconds poll{1000};  // how often the head is looked at where nothing tells of a change
};

// `workers` applies and hashes; it outlives the origin.
std::unique_ptr<Origin> NewLogOrigin(LogOriginOptions options, WorkerPool& workers);

}  // namespace lockstep::origin
