// A directory for a test, gone with its owner.
#pragma once

#include <stdlib.h>

#include <string>

#include "common/os/file.h"

namespace lockstep::os {

// Neither copied nor moved. path() is empty where `base` cannot be written. The default is /tmp and not Bazel's own
// directory because a socket's path must fit 107 characters.
class TempDir {
 public:
  explicit TempDir(const std::string& base = "/tmp") : path_(base + "/lockstep-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    if (!path_.empty()) (void)RemoveTree(path_);
  }

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace lockstep::os
