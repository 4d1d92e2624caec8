// Two versions of a model in memory like that of the daemons, and the passes over them that the benchmarks time.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "common/base/worker_pool.h"
#include "common/model/manifest.h"
#include "common/os/segment.h"
#include "common/payload/payload.h"
#include "tests/bench/delta/read_loop.h"
#include "trainer_agent/delta/delta_job.h"

namespace lockstep::bench {

// The versions are in shared mappings with pages of 4 KiB. Nothing is left of them when the process dies. A timed pass
// uses `threads` threads: the agent's workers, or the receiver's workers and its session thread.
class DeltaPair {
 public:
  static constexpr uint64_t kCopies = 2;  // of the model: what it takes of memory

  DeltaPair(std::shared_ptr<const model::ModelLayout> layout, size_t threads);

  const model::ModelLayout& layout() const { return *layout_; }
  uint64_t bytes() const { return layout_->data_bytes(); }
  double gigabytes() const { return static_cast<double>(bytes()) / 1e9; }
  std::span<std::byte> slot(size_t which) const { return slots_[which].span(); }
  WorkerPool& pool() { return receiver_pool_; }

  // After the slots were written: hashes them, and finds out which loop reads them fastest.
  void Written();

  // Seconds of the loops that only read, by the agent's threads (both slots) and by the receiver's (slot 0).
  double TimeReadBoth();
  double TimeReadOne();
  // Seconds of the agent's one pass from slot `from` to the other.
  double TimeDiff(payload::CodecLevel level, size_t from = 0);
  // What the last TimeDiff found.
  const delta::DeltaOutput& found() const { return found_; }
  uint64_t changes() const;
  std::shared_ptr<const payload::Payload> FoundPayload(Version base) const;
  // Seconds of applying `chain` to slot 0, which must then have every promised hash.
  double TimeApply(std::span<const std::shared_ptr<const payload::Payload>> chain);

  // Seconds of a pass and of the loop that only reads the same, in turns: memory's speed changes from one second to the
  // next. What warms memory is not counted.
  struct Samples {
    std::vector<double> read, pass;
  };
  // From slot 0 to slot 1.
  Samples SampleDiff(payload::CodecLevel level, int repeats);
  // Brings slot 0 forward to slot 1's version, and back again. What was found last is the delta forward.
  Samples SampleApply(payload::CodecLevel level, int repeats);

 private:
  void ChooseLoads();

  const std::shared_ptr<const model::ModelLayout> layout_;
  Loads loads_ = Loads::kWide32;
  os::MappedSegment slots_[2];
  std::shared_ptr<const model::Manifest> manifests_[2];
  std::vector<BlockIndex> all_blocks_;
  delta::DeltaOutput found_;
  WorkerPool agent_pool_;
  WorkerPool receiver_pool_;
};

// Order-0 entropy, in bytes per change, of the gaps inside blocks and of the steps, over the whole model: what no code
// that takes gap by gap and step by step can go below. 0 where nothing changed.
double EntropyPerChange(const DeltaPair& pair);

}  // namespace lockstep::bench
