// All that has to be written to bring an engine's ranks to a version: ranks that hold a version which
// deltas lead from get what changed, the others everything.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "common/model/layout.h"
#include "raas_receiver/placement/plan/placement_plan.h"
#include "raas_receiver/placement/writes/delta_writes.h"
#include "raas_receiver/targets/rank_connection.h"
#include "raas_receiver/targets/target_version.h"

namespace lockstep::targets {

// By rank, complete, in the order in which the plan was compiled.
using EngineRanks = std::span<const std::shared_ptr<RankConnection>>;

// What a rank's memory holds; nullopt: it is not to be written.
using HeldByRank = std::vector<std::optional<VersionRef>>;

struct CompiledPlan {
  std::shared_ptr<const placement::PlacementPlan> placement;
  std::vector<std::string> unused;  // tensors that no rank takes, as their `ignore` allows
};

// Where the tensors of `layout` lie in the memory of `ranks`, all of them. An error says what does not fit.
Result<CompiledPlan> CompilePlan(const model::ModelLayout& layout, EngineRanks ranks);

class GroupWrites {
 public:
  GroupWrites() = default;  // nothing

  // The writes for the ranks that have an entry in `from` and are not at `version` there. `plan` and the version's data
  // outlive this.
  static Result<GroupWrites> Create(std::shared_ptr<const placement::PlacementPlan> plan, const TargetVersion& version,
                                    const DeltasBetween& deltas, const HeldByRank& from, uint64_t batch_bytes);

  // Of what was written or handed over.
  uint64_t written_bytes() const;
  // Gives ranks what Run will have them write, as far as it is changes, and about `bytes` in all. Nothing is written.
  Status HandOver(EngineRanks ranks, uint64_t bytes, WorkerPool& pool);
  // The ranks that this is for write; waits for them. After an error they hold a mix. Once only.
  Status Run(EngineRanks ranks, WorkerPool& pool);

 private:
  struct Part {  // ranks that hold the same
    std::vector<uint32_t> ranks;
    std::optional<placement::DeltaWrites> changes;  // nullopt: everything
  };

  Status WriteAll(const Part& part, EngineRanks ranks, WorkerPool& pool) const;

  std::shared_ptr<const placement::PlacementPlan> plan_;
  std::shared_ptr<const model::ModelLayout> layout_;
  std::span<const std::byte> data_;
  VersionRef version_;
  uint64_t batch_bytes_ = 0;
  std::vector<Part> parts_;
};

// Whether the rank's memory is `version`: every byte that the plan has of it, and its zeros.
Result<bool> HoldsVersion(const placement::PlacementPlan& plan, RankConnection& rank, const TargetVersion& version,
                          uint64_t batch_bytes);

}  // namespace lockstep::targets
