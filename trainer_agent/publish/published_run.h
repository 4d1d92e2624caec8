// PublishedRun: the double buffer of one run, and what receivers are served of it.
//
// A version whose bytes are in a slot is served once it was compared with the one before (InputOf), its manifest is
// recorded, its delta retained, and the catalog has it.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "common/base/worker_pool.h"
#include "trainer_agent/buffer/double_buffer.h"
#include "trainer_agent/delta/delta_job.h"
#include "trainer_agent/store/version_catalog.h"

namespace lockstep::publish {

// How versions are compared. The threads compete with the ranks' own copies for cores and memory bandwidth.
struct DiffOptions {
  WorkerPool* pool = nullptr;
  payload::CodecLevel codec = payload::CodecLevel::kFast;  // of all deltas
};

// Thread-safe.
class PublishedRun {
 public:
  // REQUIRES the pool and catalog to outlive this.
  PublishedRun(std::shared_ptr<buffer::DoubleBuffer> buffer, store::StoreOptions store, DiffOptions diff,
               store::VersionCatalog* catalog);

  buffer::DoubleBuffer& buffer() const { return *buffer_; }
  const std::shared_ptr<store::ServedRun>& served() const { return served_; }
  WorkerPool* diff_pool() const { return diff_.pool; }

  // Makes the run visible to receivers.
  void Open() { catalog_->Open(served_); }

  // Returns the input of the diff of `slot` against the other slot, which holds `base` (null: hash only).
  delta::DeltaInput InputOf(size_t slot, const std::shared_ptr<const model::Manifest>& base) const;
  std::shared_ptr<const model::Manifest> MakeManifest(Version version, std::vector<uint64_t> block_hashes) const;
  // Adds the delta between two versions to the run's store. A failure is logged; receivers then pull in full.
  void RetainDelta(const model::Manifest& base, const model::Manifest& target, int64_t committed_unix_ns,
                   const delta::DeltaOutput& output);
  // Makes `version` the newest that is served. kAborted when `base`, with which it was compared (null: with none), was
  // withdrawn meanwhile; then the run serves nothing, and no delta.
  Status Serve(store::ServedVersion version, const model::Manifest* base);

 private:
  const std::shared_ptr<buffer::DoubleBuffer> buffer_;
  const std::shared_ptr<store::ServedRun> served_;
  const DiffOptions diff_;
  store::VersionCatalog* const catalog_;
  std::atomic<bool> large_deltas_ = false;  // the newest delta took more than half of the model, as the log has
};

// Serves what an earlier agent left in a run's buffer: hashes each committed slot again, drops one that differs from
// its recorded manifest, makes the delta between the two again, and serves both. Returns the newest that is served, 0
// for none. Call before another thread has the run.
Version RecoverRun(PublishedRun& run);

}  // namespace lockstep::publish
