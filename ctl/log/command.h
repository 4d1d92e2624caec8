// `lockstepctl log`, which asks no daemon, but a log (common/versionlog/FORMAT.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "ctl/changes/changes.h"
#include "ctl/output/output.h"

namespace CLI {
class App;
}

namespace lockstep::ctl {

struct LogOptions {
  enum class Command { kList, kVerify, kFetch, kDiff, kPrune };
  Command command = Command::kList;
  std::string url;
  std::string model;               // empty: the only one there is; of kList: all
  std::vector<std::string> plain;  // networks whose stores may be spoken to in plaintext
  std::string keys;                // PEM file of public keys; empty: what is not signed is read, too
  uint64_t version = 0;            // of kFetch; 0: the newest
  std::string out;                 // of kFetch: a directory that is not there yet
  DiffOptions diff;                // of kDiff
  uint64_t grace_s = 900;          // of kPrune
  uint64_t connections = 8;
};

// REQUIRES options to outlive `command`.
void AddLogOptions(CLI::App& command, LogOptions& options);

// kCorrupt names each object that is damaged or lost; kNotFound for a log, model or version that there is not; else the
// error of what was read or written.
Status Run(const LogOptions& options, const Output& output);

}  // namespace lockstep::ctl
