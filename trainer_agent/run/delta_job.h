// DeltaJob: compares, hashes and encodes one version, block by block, as its blocks become ready.
//
// Per block: one pass that finds the changes against the base and hashes the new bytes, then the changes are encoded,
// out of the caches. Blocks may be given while later ones are still being written, so that a commit has only the tail
// left to do; as many threads as the trainer can spare work them until then.
//
// A block that the trainer reports as unchanged is not read, on trust: were that wrong, the version's manifest would
// not match its bytes, which a full pull, the store's scrubber and the next recovery find by hashing them, and never a
// delta.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/worker_pool.h"
#include "common/changes/version_changes.h"
#include "common/model/manifest.h"
#include "common/payload/payload.h"

namespace lockstep::run {

struct DeltaOutput {
  std::vector<uint64_t> block_hashes;  // of the target, every block
  // The blocks that differ from the base; none without a base, or when too dense. Raw ones may lend bytes of the
  // target.
  std::vector<std::shared_ptr<const payload::DeltaBlock>> blocks;
  std::vector<changes::TensorChange>
      changes;               // of each tensor, against the base; without a base: its NaN and Inf alone
  size_t blocks_unread = 0;  // hashes taken from the base, as reported unchanged
  bool too_dense = false;    // coded, the blocks would take more than DeltaInput::max_coded_bytes
};

// Where the job reads. The memory must stay valid and, block by block from the moment it is given, unchanged until the
// job is done or destroyed.
struct DeltaInput {
  std::shared_ptr<const model::ModelLayout> layout;
  const std::byte* target = nullptr;
  const std::byte* base = nullptr;                       // null: hash only
  std::shared_ptr<const model::Manifest> base_manifest;  // with `base`: hashes of unchanged blocks
  uint64_t max_coded_bytes = ~uint64_t{0};  // a delta larger than this is dropped: its memory is not worth it
  payload::CodecLevel level = payload::CodecLevel::kFast;
  // Called with the coded bytes of each differing block, by the pool's threads. May be null.
  std::function<void(uint64_t bytes)> on_coded;
  // Called with each differing block as it is encoded, by the pool's threads, and the block is whole: it lends nothing.
  // May be null.
  std::function<void(std::shared_ptr<const payload::DeltaBlock>)> on_block;
  // When the blocks given to on_block would take more bytes than this, on_block is called with null: the job gives no
  // more blocks, except some that are at work.
  uint64_t max_early_bytes = ~uint64_t{0};
};

// Thread-safe.
class DeltaJob {
 public:
  // REQUIRES the pool to outlive the job.
  DeltaJob(WorkerPool* pool, DeltaInput input);
  // Cancels what has not started and waits for what has.
  ~DeltaJob();

  // Gives `blocks` to the job, to be compared and hashed. REQUIRES that neither call had one of them before.
  void BlocksReady(std::vector<BlockIndex> blocks);
  // Gives `blocks` to the job as equal to the base's; without a base, as BlocksReady. REQUIRES as BlocksReady.
  void BlocksUnchanged(std::vector<BlockIndex> blocks);

  // Calls `done` with the output, from a pool thread, when every block of the layout has been worked. REQUIRES all
  // blocks to have been given; call once. The job may be destroyed from another thread only after `done` has returned.
  void Finish(std::function<void(DeltaOutput)> done);
  // Whether nothing is at work, nor will be before the next call: destruction would not wait.
  bool idle() const {
    MutexLock lock(mutex_);
    return tasks_ == 0;
  }
  // As Finish, but waits and returns the output.
  DeltaOutput FinishAndWait();

 private:
  void Post(std::vector<BlockIndex> blocks) LS_REQUIRES(mutex_);
  void Work(const std::vector<BlockIndex>& blocks);
  void WorkBlock(BlockIndex block);
  bool too_dense() const { return coded_bytes_ > input_.max_coded_bytes; }
  void GiveEarly(const std::shared_ptr<payload::DeltaBlock>& delta);
  void Complete(const std::function<void(DeltaOutput)>& done, size_t blocks_unread);

  WorkerPool* const pool_;
  const DeltaInput input_;

  mutable Mutex mutex_;
  std::condition_variable idle_;
  size_t tasks_ LS_GUARDED_BY(mutex_) = 0;  // posted and not finished
  size_t blocks_done_ LS_GUARDED_BY(mutex_) = 0;
  size_t blocks_unread_ LS_GUARDED_BY(mutex_) = 0;
  bool cancelled_ LS_GUARDED_BY(mutex_) = false;
  std::function<void(DeltaOutput)> done_ LS_GUARDED_BY(mutex_);

  std::atomic<uint64_t> coded_bytes_ = 0;
  std::atomic<uint64_t> early_bytes_ = 0;
  // Slots per block, each written by the one task that works it, or by the caller that reports it unchanged.
  std::vector<uint64_t> hashes_;
  std::vector<std::shared_ptr<const payload::DeltaBlock>> deltas_;
  std::vector<changes::BlockChange> changes_;
};

}  // namespace lockstep::run
