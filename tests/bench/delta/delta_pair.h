// Two versions of a Qwen3 that Adam trains, in memory like that of the daemons, and the passes over them that the
// benchmarks time.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "common/base/worker_pool.h"
#include "common/model/manifest.h"
#include "common/os/segment.h"
#include "common/payload/payload.h"
#include "tests/bench/delta/adam_model.h"
#include "trainer_agent/run/delta_job.h"

namespace lockstep::bench {

// A loop with loads of 32 or of 64 bytes, where the machine has such; wider is not always faster.
enum class Loads { kWide32, kWide64 };

// The bitwise or of all whole words of both, so that nothing is left out. Both are read side by side: two streams for
// the prefetcher, which measured no slower than one after the other.
uint64_t ReadBoth(const std::byte* a, const std::byte* b, size_t bytes, Loads loads);

size_t Cores();

// The versions are in shared mappings with pages of 4 KiB. Nothing is left of them when the process dies. A timed pass
// uses `threads` threads: the agent's workers, or the receiver's workers and its session thread.
class DeltaPair {
 public:
  static constexpr uint64_t kCopies = 2;  // of the model: what it takes of memory

  explicit DeltaPair(uint64_t bytes, size_t threads = Cores());

  const model::ModelLayout& layout() const { return *model_.layout(); }
  uint64_t bytes() const { return layout().data_bytes(); }
  double gigabytes() const { return static_cast<double>(bytes()) / 1e9; }
  std::span<std::byte> slot(size_t which) const { return slots_[which].span(); }
  WorkerPool& pool() { return receiver_pool_; }

  // Two versions that follow each other, of which about this share of the elements differs.
  void Write(double density);

  // Seconds of the agent's one pass from slot `from` to the other; and the delta that it found.
  double TimeDiff(payload::CodecLevel level, size_t from = 0);
  std::shared_ptr<const payload::Payload> found() const;
  uint64_t changes() const;  // of that delta
  // The deltas from slot 0 to slot 1 and back.
  std::vector<std::shared_ptr<const payload::Payload>> ThereAndBack(payload::CodecLevel level);
  // Seconds of applying `delta` to slot 0, which must then have every promised hash.
  double TimeApply(const std::shared_ptr<const payload::Payload>& delta);

  // Seconds of a pass and of the loop that only reads the same, in turns: memory's speed changes from one second to the
  // next. What warms memory is not counted.
  struct Samples {
    std::vector<double> read, pass;
  };
  // From slot 0 to slot 1.
  Samples SampleDiff(payload::CodecLevel level, int repeats);
  // Brings slot 0 forward to slot 1's version, and back again.
  Samples SampleApply(payload::CodecLevel level, int repeats);

  // Order-0 entropy, in bytes per change, of the gaps inside blocks and of the steps, over the whole model: what no
  // code that takes gap by gap and step by step can go below.
  double EntropyPerChange() const;

 private:
  double TimeReadBoth();
  double TimeReadOne();
  void ChooseLoads();

  const AdamModel model_;
  Loads loads_ = Loads::kWide32;
  os::MappedSegment slots_[2];
  std::shared_ptr<const model::Manifest> manifests_[2];
  run::DeltaOutput found_;
  WorkerPool agent_pool_;
  WorkerPool receiver_pool_;
};

}  // namespace lockstep::bench
