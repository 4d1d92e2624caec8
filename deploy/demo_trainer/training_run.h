// A demo trainer's life: make or load the model, then train and publish until the steps are done.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"

namespace lockstep::demo {

struct Options {
  std::string socket;
  std::string model = "actor";
  std::string shape = "tiny";
  std::string checkpoint;  // a directory; wins over `shape`
  uint64_t steps = 10;     // optimizer steps; version 1 is the initial weights
  double learning_rate = 1e-6;
  uint64_t seed = 1;
  uint32_t threads = 0;  // 0: one per core
  bool paced = false;
  std::string write_assets;  // a directory: write config.json there and end
  bool describe = false;     // print the model's sizes and end
};

// Prints one JSON object per published version to stdout:
//   {"version", "step", "changed_elements", "density", "step_ms", "blocked_ms", "sha256"}
// with the elements that changed against the version before, the time of the whole pass, the part of it spent in calls
// of the export plugin, and, for the last version, the digest of the published data section.
Status Run(const Options& options);

}  // namespace lockstep::demo
