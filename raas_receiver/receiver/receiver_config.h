// What raas_receiver is told: flags, environment, file.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/net/host_port.h"

namespace lockstep {

struct ReceiverConfig {
  std::string name;
  HostPort agent;
  std::vector<std::string> models;
  std::string root;    // absolute
  std::string assets;  // absolute, or empty
  HostPort listen;
  size_t lanes = 0;
  size_t threads = 0;
  bool follow = true;
  std::string hook;
  std::chrono::milliseconds hook_timeout{0};
  int hook_attempts = 0;
  uint64_t keep_delta_bytes = 0;
  std::chrono::milliseconds reader_grace{0};
  std::chrono::milliseconds drain_timeout{0};
  std::string log_level;
  std::string log_format;
};

// Nothing when --help and the like were answered: exit with 0. kUsage or kConfig names the setting and what it wants.
Result<std::optional<ReceiverConfig>> ParseReceiverConfig(int argc, const char* const* argv);

}  // namespace lockstep
