// StagedWrites: all that has to be written into an engine's memories to bring them to a version, worked out beforehand,
// so that the engine's pause is these writes and nothing else.
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
#include "raas_receiver/placement/writes/translate.h"

namespace lockstep::placement {

struct StagedStats {
  uint64_t positions = 0;      // changed elements, counted once however many ranks take them
  uint64_t written_bytes = 0;  // into all buffers
  uint64_t staged_bytes = 0;   // memory taken
};

class StagedWrites {
 public:
  // The memories of a plan's buffers, by buffer; null: that buffer is left alone. Not owned.
  using Memories = std::vector<TargetMemory*>;

  // The writes for the buffers in `wanted`, from a version whose data section is `data` and which `chain` leads to or
  // from. Takes about `memory_limit` bytes at most; blocks beyond are translated while writing. kCorrupt for a chain
  // that cannot be decoded. `plan`, `layout`, `chain` and `data` outlive this.
  static Result<StagedWrites> FromChain(const PlacementPlan& plan, const model::ModelLayout& layout,
                                        payload::DeltaChain chain, std::span<const std::byte> data,
                                        const std::vector<bool>& wanted, uint64_t memory_limit, WorkerPool& pool);
  // Everything that the buffers in `wanted` have of `data`, and their zeros. `plan` and `data` outlive this.
  static StagedWrites Whole(const PlacementPlan& plan, std::span<const std::byte> data,
                            const std::vector<bool>& wanted);

  // Writes, and waits until all is there. May be run again. After an error the memories hold a mix.
  Status Run(const Memories& memories, WorkerPool& pool) const { return RunRest(0, memories, pool); }
  // The same in two parts, which may be of other memories: the first `lists` of what was worked out; all that is left.
  Status RunFirst(size_t lists, const Memories& memories, WorkerPool& pool) const;
  Status RunRest(size_t lists, const Memories& memories, WorkerPool& pool) const;
  // How many lists, from the first on, are no more than `bytes` once they are copied with all their values; takes off
  // what they are.
  size_t TakeLists(uint64_t& bytes) const;

  const StagedStats& stats() const { return stats_; }

 private:
  explicit StagedWrites(std::span<const std::byte> data) : data_(data) {}
  Status Stage(const model::ModelLayout& layout, uint64_t memory_limit, WorkerPool& pool);
  void StageCopies(uint32_t buffer, std::span<const layout::StridedCopy> copies);
  void StageZeros(uint32_t buffer, std::span<const StridedRange> zeros);
  void TakeTurns(const PlacementPlan& plan);
  Status RunLists(size_t from, size_t to, const Memories& memories, WorkerPool& pool) const;
  Status RunLate(const Memories& memories, WorkerPool& pool) const;

  std::span<const std::byte> data_;
  std::unique_ptr<const Translator> translator_;  // of a chain
  std::vector<BlockIndex> blocks_;
  std::vector<WriteList> lists_;
  std::vector<std::span<const BlockIndex>> late_;  // for which there was no memory: translated while writing
  StagedStats stats_;
};

}  // namespace lockstep::placement
