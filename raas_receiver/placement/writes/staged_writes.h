// StagedWrites: all that an engine's ranks have to write to be at a version, worked out beforehand, so that the
// engine's pause is these writes and nothing else.
//
// From a chain of deltas: the positions that they change, with the values of the wanted version, so that writing them
// twice does no harm, and the version before is made again by the same positions with that version's values. Without a
// chain: everything, and the zeros between, which no version changes.
//
// Cost follows the changes: only blocks with an entry are read. A block of which so much changes that a list would
// be no smaller than a sixth of it, or that the chain has in full, is copied whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "common/model/layout.h"
#include "raas_receiver/placement/plan/placement_plan.h"
#include "raas_receiver/placement/writes/portion_writer.h"
#include "raas_receiver/placement/writes/translate.h"

namespace lockstep::placement {

struct StagedStats {
  uint64_t positions = 0;      // changed elements, counted once however many ranks take them
  uint64_t written_bytes = 0;  // into all buffers
  uint64_t staged_bytes = 0;   // memory taken
};

class StagedWrites {
 public:
  // Of a plan's ranks, by rank; null: that rank gets nothing. Not owned.
  using Writers = std::vector<PortionWriter*>;

  // The writes for the buffers in `wanted`, from a version whose data section is `data` and which `chain` leads to or
  // from. Takes about `memory_limit` bytes at most; blocks beyond are translated while writing. kCorrupt for a chain
  // that cannot be decoded. `plan`, `layout`, `chain` and `data` outlive this.
  static Result<StagedWrites> FromChain(const PlacementPlan& plan, const model::ModelLayout& layout,
                                        payload::DeltaChain chain, std::span<const std::byte> data,
                                        const std::vector<bool>& wanted, uint64_t memory_limit, WorkerPool& pool);
  // Everything that the buffers in `wanted` have of `data`, and their zeros. `plan` and `data` outlive this.
  static StagedWrites Whole(const PlacementPlan& plan, std::span<const std::byte> data,
                            const std::vector<bool>& wanted);

  // Gives the writers everything and flushes them, also after an error. May be run again.
  Status Run(const Writers& writers, WorkerPool& pool) const { return RunRest(0, writers, pool); }
  // The same in two parts: the first `lists` of what was worked out; all that is left.
  Status RunFirst(size_t lists, const Writers& writers, WorkerPool& pool) const;
  Status RunRest(size_t lists, const Writers& writers, WorkerPool& pool) const;
  // How many lists, from the first on, are no more than `bytes` once they are copied with all their values; takes off
  // what they are.
  size_t TakeLists(uint64_t& bytes) const;

  const StagedStats& stats() const { return stats_; }

 private:
  StagedWrites(const PlacementPlan& plan, std::span<const std::byte> data) : plan_(&plan), data_(data) {}
  Status Stage(const model::ModelLayout& layout, uint64_t memory_limit, WorkerPool& pool);
  void StageCopies(uint32_t buffer, std::span<const layout::StridedCopy> copies);
  void StageZeros(uint32_t buffer, std::span<const StridedRange> zeros);
  void TakeTurns();
  Status Write(const WriteList& list, const Writers& writers) const;
  Status RunLists(size_t from, size_t to, const Writers& writers, WorkerPool& pool) const;
  Status RunLate(const Writers& writers, WorkerPool& pool) const;

  const PlacementPlan* plan_;
  std::span<const std::byte> data_;
  std::unique_ptr<const Translator> translator_;  // of a chain
  std::vector<BlockIndex> blocks_;
  std::vector<WriteList> lists_;
  std::vector<std::span<const BlockIndex>> late_;  // for which there was no memory: translated while writing
  StagedStats stats_;
};

}  // namespace lockstep::placement
