// The processes for which a daemon runs: each holds a shared lock (flock) on one file. The kernel takes the lock of a
// process that ends, however it ends.
#pragma once

#include <string>

#include "common/base/status.h"
#include "common/os/unique_fd.h"

namespace lockstep::os {

// Move-only; used by one thread.
class Owners {
 public:
  // Opens the file, which the first owner has made and locked. An empty path means that no process owns
  // this process. Errors name the path.
  static Result<Owners> Open(const std::string& path);

  // Whether no process holds a lock any more; never without a path. From then on this process holds the file
  // exclusively, so that a process that wants to become an owner now finds that it is too late.
  bool Gone() const;

 private:
  explicit Owners(UniqueFd file) : file_(std::move(file)) {}

  UniqueFd file_;
};

}  // namespace lockstep::os
