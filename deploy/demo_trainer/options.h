// The demo trainer's command line.
#pragma once

#include <cstdint>
#include <optional>
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
  uint32_t step_delay_ms = 0;
  bool paced = false;
  std::string digests;        // a file; empty: none
  uint64_t digest_every = 0;  // versions; 0: only the last one
  std::string write_assets;   // a directory: write config.json there and end
  bool describe = false;      // print the model's sizes and end
};

// What main() should do: run with these options, or end with `exit_code`, everything having been said.
struct ParsedOptions {
  std::optional<Options> options;
  int exit_code = 0;
};
ParsedOptions ParseOptions(int argc, const char* const* argv);

}  // namespace lockstep::demo
