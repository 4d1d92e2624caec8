// Spool: deltas that wait to be archived, as files beside the replicas. They outlive a receiver that is killed, so that
// its log goes on where it stopped.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "common/payload/payload.h"

namespace lockstep::archive {

// Thread-safe.
class Spool {
 public:
  struct Delta {
    RunId run;
    Version base = 0;
    Version target = 0;
    uint64_t bytes = 0;
  };

  // Opens the spool in `directory`, and makes the directory if it is missing. Deltas of an earlier process wait again.
  static Result<std::unique_ptr<Spool>> Open(std::string directory);

  // Writes `delta` into the spool. kResourceExhausted when more than `max_bytes` would wait; the spool is empty then.
  Status Add(const payload::Payload& delta, const std::string& label, uint64_t max_bytes);

  // The deltas that wait, by rising base.
  std::vector<Delta> deltas() const;
  uint64_t bytes() const;
  // Returns the first delta of those that lead from `from` to `to`; no value when none does. The spool may have other
  // deltas from `from`, which were added and whose version was not committed.
  std::optional<Delta> Next(const VersionRef& from, Version to) const;

  struct SpooledDelta {
    std::shared_ptr<const payload::Payload> payload;
    std::string label;  // of its target
  };
  // Reads a delta back. kCorrupt: its file is not what Add() wrote, as after a power cut.
  Result<SpooledDelta> Get(const Delta& delta, const model::ModelLayout& layout) const;

  void Remove(const Delta& delta);
  void Clear();

 private:
  explicit Spool(std::string directory) : directory_(std::move(directory)) {}
  std::string PathOf(const Delta& delta) const;

  const std::string directory_;
  mutable Mutex mutex_;
  std::vector<Delta> deltas_ LS_GUARDED_BY(mutex_);  // by rising base
};

}  // namespace lockstep::archive
