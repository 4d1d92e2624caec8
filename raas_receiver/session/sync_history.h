// SyncHistory: what a session's status says of the syncs so far.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "common/base/status.h"
#include "proto/lockstep/v1/receiver.pb.h"

namespace lockstep::session {

// Thread-safe.
class SyncHistory {
 public:
  void Add(const Status& outcome, const v1::SyncRecord& record, uint64_t lane_retries) {
    std::lock_guard lock(mutex_);
    (outcome.ok() ? syncs_ : failures_) += 1;
    repaired_blocks_ += record.repaired_blocks();
    lane_retries_ += lane_retries;
    last_error_ = outcome.ok() ? record.engine_error() : outcome.ToString();
  }
  // Engines were made to serve the current version outside of a sync.
  void AddServe(const Status& outcome) {
    std::lock_guard lock(mutex_);
    last_error_ = outcome.ok() ? "" : outcome.ToString();
  }
  // Blocks of what is held were found to be damaged.
  void AddDamage(const Status& what, size_t blocks) {
    std::lock_guard lock(mutex_);
    damaged_blocks_ += blocks;
    last_error_ = what.ToString();
  }
  void Describe(v1::ReceiverModel& model) const {
    std::lock_guard lock(mutex_);
    model.set_repaired_blocks(repaired_blocks_);
    model.set_damaged_blocks(damaged_blocks_);
    model.set_syncs(syncs_);
    model.set_failures(failures_);
    model.set_lane_retries(lane_retries_);
    model.set_last_error(last_error_);
  }

 private:
  mutable std::mutex mutex_;
  uint64_t repaired_blocks_ = 0;
  uint64_t damaged_blocks_ = 0;
  uint64_t syncs_ = 0;
  uint64_t failures_ = 0;
  uint64_t lane_retries_ = 0;
  std::string last_error_;  // of the last sync, or of its engines
};

}  // namespace lockstep::session
