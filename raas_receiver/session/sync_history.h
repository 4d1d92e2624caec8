// SyncHistory: what a session's status says of the syncs so far.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/telemetry/timeline.h"
#include "proto/lockstep/v1/receiver.pb.h"

namespace lockstep::session {

// Thread-safe.
class SyncHistory {
 public:
  void Add(const Status& outcome, const v1::SyncRecord& record, uint64_t lane_retries) {
    MutexLock lock(mutex_);
    failures_ += outcome.ok() ? 0 : 1;
    repaired_blocks_ += record.repaired_blocks();
    lane_retries_ += lane_retries;
    plain_bytes_ += record.plain_bytes();
    const bool repair = record.mode() == "repair";  // which is no news of the origin
    Set(repair ? damage_ : sync_error_, outcome);
    if (!outcome.ok() || repair) return;
    ++syncs_;
    last_sync_unix_ns_ = telemetry::UnixNanos();
    if (record.mode() != "up_to_date") damage_ = {};
  }
  // Blocks of what is held were found to be damaged.
  void AddDamage(const Status& what, size_t blocks) {
    MutexLock lock(mutex_);
    damaged_blocks_ += blocks;
    Set(damage_, what);
  }
  // Nothing that is held is known to be damaged any more.
  void EndDamage() {
    MutexLock lock(mutex_);
    damage_ = {};
  }
  // A sync that failed before `over_unix_ns` is not told any more.
  void Describe(v1::ReceiverModel& model, int64_t over_unix_ns) const {
    MutexLock lock(mutex_);
    model.set_repaired_blocks(repaired_blocks_);
    model.set_damaged_blocks(damaged_blocks_);
    model.set_syncs(syncs_);
    model.set_failures(failures_);
    model.set_lane_retries(lane_retries_);
    model.set_plain_bytes(plain_bytes_);
    model.set_last_sync_unix_ns(last_sync_unix_ns_);
    // The last that there is: nothing is worse than damage.
    for (const Error* error : {&sync_error_, &damage_}) {
      const bool over = error == &sync_error_ && error->unix_ns < over_unix_ns;
      if (error->text.empty() || over) continue;
      model.set_last_error(error->text);
      model.set_last_error_unix_ns(error->unix_ns);
    }
  }

 private:
  struct Error {
    std::string text;  // empty after a success
    int64_t unix_ns = 0;
  };
  static void Set(Error& error, const Status& outcome) {
    error = outcome.ok() ? Error() : Error{outcome.ToString(), telemetry::UnixNanos()};
  }

  mutable Mutex mutex_;
  uint64_t repaired_blocks_ LS_GUARDED_BY(mutex_) = 0;
  uint64_t damaged_blocks_ LS_GUARDED_BY(mutex_) = 0;
  uint64_t syncs_ LS_GUARDED_BY(mutex_) = 0;
  uint64_t failures_ LS_GUARDED_BY(mutex_) = 0;
  uint64_t lane_retries_ LS_GUARDED_BY(mutex_) = 0;
  uint64_t plain_bytes_ LS_GUARDED_BY(mutex_) = 0;
  int64_t last_sync_unix_ns_ LS_GUARDED_BY(mutex_) = 0;
  Error sync_error_ LS_GUARDED_BY(mutex_);  // of the last sync
  Error damage_ LS_GUARDED_BY(mutex_);      // of what is held, until it is whole
};

}  // namespace lockstep::session
