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

  // In `directory`, which is made where it is not there. What is in it already, of an earlier process, waits again.
  static Result<std::unique_ptr<Spool>> Open(std::string directory);

  // kResourceExhausted, and nothing waits any more, when more than `max_bytes` would.
  Status Add(const payload::Payload& delta, const std::string& label, uint64_t max_bytes);

  // Those that wait, by rising base.
  std::vector<Delta> deltas() const;
  uint64_t bytes() const;
  // The first of those that lead from one version to another. There may be others of its base: they were put aside and
  // not committed. Nothing: none leads there.
  std::optional<Delta> Next(const VersionRef& from, Version to) const;

  struct Read {
    std::shared_ptr<const payload::Payload> payload;
    std::string label;  // of its target
  };
  // kCorrupt: it is not what was added, as after a power cut.
  Result<Read> Get(const Delta& delta, const model::ModelLayout& layout) const;

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
