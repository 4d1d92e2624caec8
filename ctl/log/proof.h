// Internal to ctl/log. The proof of a log: every object is what its name says, and every version comes out of them as
// its digest says.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "common/versionlog/log_reader.h"
#include "proto/lockstep/v1/agent.pb.h"

namespace lockstep::ctl {

struct LogProof {
  uint64_t objects = 0;
  uint64_t bytes = 0;
  uint64_t versions = 0;
  std::vector<std::string> damaged;  // an error for each object; nothing else was looked at then
};

// An error: it could not be told, or versions are not what they are called though all objects are whole.
Result<LogProof> ProveLog(versionlog::LogReader& reader, const v1::LogHead& head, WorkerPool& transfers,
                          WorkerPool& workers);

// Makes `version` in `data`, the whole data section. Returns the hashes of its blocks; their digest is the head's.
Result<std::vector<uint64_t>> MakeVersion(versionlog::LogReader& reader, const v1::LogHistory& history,
                                          const model::ModelLayout& layout, Version version, std::span<std::byte> data);

// What each version after `first` up to `last` changed. Both are made, and all in between.
Result<std::vector<v1::VersionChanges>> CountSteps(versionlog::LogReader& reader, const v1::LogHistory& history,
                                                   std::shared_ptr<const model::ModelLayout> layout, Version first,
                                                   Version last, WorkerPool& workers);

}  // namespace lockstep::ctl
