// The directory of one model, <root>/<model>/, and what a receiver keeps in its hidden part (FORMAT.md).
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/os/unique_fd.h"

namespace lockstep::replica {

// An operator's rollback.
struct Rollback {
  VersionRef version;  // version 0: there is no rollback
  bool skip = false;   // `version` is not made current before a newer one was; else it stays current until a pull

  bool operator==(const Rollback&) const = default;
};

// Owns the directory for as long as it lives. Move-only. Not thread-safe.
class ReplicaDirectory {
 public:
  // Makes the directory if there is none, and removes what a receiver that was killed had half built. kPermission when
  // `root` cannot be written, or it or what is in it could be made by another user; kState when another receiver owns
  // the directory.
  static Result<ReplicaDirectory> Open(const std::string& root, const std::string& model);
  ReplicaDirectory(ReplicaDirectory&&) = default;
  // Removes what Open() made, the root too, if no replica was put there: the next user may be another one.
  ~ReplicaDirectory();

  const std::string& path() const { return path_; }
  const std::string& scratch() const { return scratch_; }  // the hidden part, on the same filesystem
  std::string ReplicaPath(size_t index) const;
  std::string StatePath(size_t index) const;

  // Where a replica's next file is made, beside the one that is there.
  std::string NextReplicaPath() const { return scratch_ + "/tmp-replica.safetensors"; }

  // Directory of deltas that wait to be archived.
  std::string SpoolPath() const { return scratch_ + "/to-archive"; }

  // Reserves `bytes` on disk, in place of an earlier reserve, for writing a version down later. kResourceExhausted.
  Status KeepRoom(uint64_t bytes) const;
  void GiveRoom() const;  // frees the reserve, so that a version can be written down

  // Whether a file's lease tells of processes that have it mapped (ReplicaFile::Claim).
  bool leases_see_mappings() const { return leases_see_mappings_; }

  // The notes of what engines last took, and of the rollback. Empty when a note is missing or cannot be read.
  std::map<std::string, VersionRef> served() const;  // by engine; of this boot of the host alone
  Status MarkServed(const std::string& engine, const VersionRef& held) const;
  // Removes the notes of engines that serve `held`; with version 0, the notes of all engines.
  Status ForgetServed(const VersionRef& held) const;
  Rollback rollback() const;
  Status MarkRollback(const Rollback& rollback) const;

 private:
  explicit ReplicaDirectory(std::string path) : path_(std::move(path)), scratch_(path_ + "/.lockstep") {}

  Status WriteServed(const std::map<std::string, VersionRef>& served) const;
  Status Lock();
  Status Sweep() const;
  std::string RoomPath() const { return scratch_ + "/room"; }
  std::string ServedPath() const { return scratch_ + "/served"; }
  std::string RolledBackPath() const { return scratch_ + "/rolled-back"; }

  std::string path_;
  std::string scratch_;
  std::vector<std::string> made_;  // directories that were not there before, the innermost first
  os::UniqueFd lock_;
  bool leases_see_mappings_ = false;
};

}  // namespace lockstep::replica
