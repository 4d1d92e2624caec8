// The file system that a path is on, and how much room it has.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"

namespace lockstep::os {

struct FileSystem {
  std::string name;         // "tmpfs", "ext4"; its magic number in hex where we know no name for it
  bool in_memory = false;   // what is written there never goes to a disk of its own
  uint64_t free_bytes = 0;  // for users without privileges
};

// The file system that `path`, which exists, is on.
Result<FileSystem> FileSystemOf(const std::string& path);

// "30.0 MiB (31457280 bytes)": for sums that people compare, where the rounded figures may look equal.
std::string ExactBytes(uint64_t bytes);

}  // namespace lockstep::os
