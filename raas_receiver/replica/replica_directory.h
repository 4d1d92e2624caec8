// The directory of one model, <root>/<model>/, and what a receiver keeps in its hidden part (FORMAT.md).
#pragma once

#include <cstddef>
#include <string>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/os/unique_fd.h"

namespace lockstep::replica {

// Owns the directory for as long as it lives. Move-only. Not thread-safe.
class ReplicaDirectory {
 public:
  // Makes the directory if there is none, and removes what a receiver that was killed had half built. kPermission when
  // `root` cannot be written, kState when another receiver owns the directory.
  static Result<ReplicaDirectory> Open(const std::string& root, const std::string& model);

  const std::string& path() const { return path_; }
  const std::string& scratch() const { return scratch_; }  // the hidden part, on the same filesystem
  std::string ReplicaPath(size_t index) const;
  std::string StatePath(size_t index) const;

  // The note of what the engine last took; nothing when there is none that can be read.
  Held served() const;
  Status MarkServed(const Held& held) const;

 private:
  explicit ReplicaDirectory(std::string path) : path_(std::move(path)), scratch_(path_ + "/.lockstep") {}

  Status Lock();
  Status Sweep() const;
  std::string ServedPath() const { return scratch_ + "/served"; }

  std::string path_;
  std::string scratch_;
  os::UniqueFd lock_;
};

}  // namespace lockstep::replica
