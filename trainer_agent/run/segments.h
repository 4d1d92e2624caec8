// Where the buffers of each run live: a directory of its own on a tmpfs, or memfds.
//
//   <segment dir>/lock                    one agent per directory
//   <segment dir>/<model>.<run>/control   slot-0  slot-1  deltas/
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/os/unique_fd.h"
#include "trainer_agent/run/double_buffer.h"

namespace lockstep::run {

// Immutable after Create(); thread-safe.
class SegmentHome {
 public:
  // With `memfd`, nothing has a name and nothing is found again: ranks return the buffers. kPermission or kUnavailable
  // when the directory cannot be used or another agent has it.
  static Result<std::unique_ptr<SegmentHome>> Create(const std::string& directory, bool memfd);
  // Removes a directory that Create() made and that no run was put in: the next user may be another one.
  ~SegmentHome();

  struct StoredRun {
    std::shared_ptr<DoubleBuffer> buffer;
    std::string directory;  // for deltas; empty with memfds
  };

  // Makes the segments of a new run. Ends the model's earlier runs that are still there.
  Result<StoredRun> Make(const std::string& model, const RunId& run, const model::ModelLayout& layout,
                         uint32_t ranks) const;
  // Opens the segments whose descriptors a rank returned: control, slot 0, slot 1. kBadData, kProtocol, kCorrupt: no
  // agent made them.
  Result<StoredRun> Adopt(std::vector<os::UniqueFd> fds) const;
  // kResourceExhausted, with what is needed and what there is, when slots for `layouts`, of the model and of those that
  // derive from it, would not fit even after `replaced` are gone.
  Status CheckRoom(const std::string& model, const std::vector<const model::ModelLayout*>& layouts,
                   const std::vector<const DoubleBuffer*>& replaced) const;
  // Opens the runs that an earlier agent left, one of each model. Removes and logs damaged runs; leaves alone what is
  // not ours, or cannot be opened just now. kState, with both paths, when a model has two runs: no agent leaves that.
  Result<std::vector<StoredRun>> FindAll() const;
  void Remove(const DoubleBuffer& buffer) const;

 private:
  SegmentHome(std::string directory, bool memfd, bool made, os::UniqueFd lock)
      : directory_(std::move(directory)), memfd_(memfd), made_(made), lock_(std::move(lock)) {}
  std::string RunDirectory(const std::string& model, const RunId& run) const;
  Result<StoredRun> Reopen(const std::string& run_directory) const;

  const std::string directory_;
  const bool memfd_;
  const bool made_;  // the directory was not there before
  const os::UniqueFd lock_;
};

}  // namespace lockstep::run
