// DeltaWrites: what an engine's ranks write to be at a version, by the deltas between what they hold and it: the units
// that change, with the values of the version, so that writing them twice does no harm, and the version before is made
// again by the same deltas with that version's values.
//
// Before the engine's pause ranks stage as much as there is memory for; the rest is worked out in the pause. Cost
// follows the changes: only blocks with an entry are read. A block of which so much changes that a list would be no
// smaller than a sixth of it, or that the deltas have in full, is copied whole.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "common/model/layout.h"
#include "common/payload/payload.h"
#include "raas_receiver/engine/placement/plan/placement_plan.h"
#include "raas_receiver/engine/placement/writes/write_batch.h"

namespace lockstep::engine {

class DeltaWrites {
 public:
  // What one thread takes at a time, in bytes of the data section: some tens of microseconds of changes.
  static constexpr uint64_t kChunkBytes = uint64_t{4} << 20;

  // Takes a write batch for the rank at position `rank` of the plan. Thread-safe.
  using Pass = std::function<Status(uint32_t rank, const os::UniqueFd& batch)>;

  // Writes for `ranks` of `plan`. `data` is the data section of the version that `chain` leads to or from. Write
  // batches have at most `batch_bytes`; threads take blocks of `chunk_bytes` at a time. kCorrupt for a block that the
  // layout does not have. `plan`, `layout` and `data` outlive this.
  static Result<DeltaWrites> Create(const PlacementPlan& plan, std::vector<uint32_t> ranks,
                                    const model::ModelLayout& layout, payload::DeltaChain chain,
                                    std::span<const std::byte> data, uint64_t batch_bytes = kMaxWriteBatchBytes,
                                    uint64_t chunk_bytes = kChunkBytes);

  // Passes on what comes first, about `bytes` of write batches, and takes off what they are. kCorrupt where any of the
  // deltas, passed on or not, cannot be decoded.
  Status Stage(uint64_t& bytes, const Pass& pass, WorkerPool& pool);
  // Passes on what is left.
  Status Run(const Pass& pass, WorkerPool& pool);

  // Of what was passed on, into all ranks.
  uint64_t written_bytes() const { return written_bytes_; }

 private:
  class Worker;

  DeltaWrites(const PlacementPlan& plan, std::vector<uint32_t> ranks, const model::ModelLayout& layout,
              payload::DeltaChain chain, std::span<const std::byte> data, uint64_t batch_bytes, uint64_t chunk_bytes);
  Status RunUntil(uint64_t& bytes, const Pass& pass, WorkerPool& pool);
  Status CheckRest(WorkerPool& pool) const;
  size_t Threads(const WorkerPool& pool) const;
  size_t chunks() const;
  std::span<const BlockIndex> chunk(size_t index) const;

  const PlacementPlan* plan_;
  std::vector<uint32_t> ranks_;
  const model::ModelLayout* layout_;
  payload::DeltaChain chain_;
  std::span<const std::byte> data_;
  uint64_t batch_bytes_;
  size_t chunk_blocks_;
  std::vector<BlockIndex> blocks_;  // with an entry in some delta, rising
  size_t next_ = 0;                 // chunks before it were passed on
  uint64_t written_bytes_ = 0;
};

}  // namespace lockstep::engine
