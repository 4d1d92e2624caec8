// CopyPlan: which rank copies what, compiled once from a TrainingModel and proved before the first byte moves.
//
// Export: every element of every HuggingFace tensor is written by exactly one rank. Among the ranks that hold the same
// shard one is chosen: first those on the agent's host, then the one with the fewest bytes so far, then the lowest.
// Import is the inverse and needs no choice: every rank reads all that it holds.
//
// The outcome does not depend on the order of holdings, sources or conversions in the TrainingModel, only on the order
// of its tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/layout/training_model.h"

namespace lockstep::layout {

// xxh3-128 of a plan's canonical form: ranks that will exchange bytes must have equal ones.
using PlanDigest = Id128<struct PlanDigestTag>;

// The part of one HuggingFace tensor that one rank writes from one local tensor.
struct PlanEntry {
  uint32_t source = 0;  // of TrainingModel::sources
  uint32_t tensor = 0;  // of TrainingModel::tensors
  Pieces pieces;        // local tensor -> HuggingFace tensor, seen as Promoted() to the local tensor's rank
};

struct RankPlan {
  std::vector<PlanEntry> entries;  // in the order of tensors
  uint64_t bytes = 0;              // of HuggingFace tensors that this rank writes
};

struct CopyPlan {
  std::vector<RankPlan> ranks;  // by rank
  uint64_t bytes = 0;
  PlanDigest digest;
};

// `on_agent_host[r]`: rank r reaches the agent's shared memory. kBadData names the tensor (and ranks) of the first rule
// broken: a tensor that no rank or not every rank holds, shards that overlap without being the same, a conversion or
// holding out of bounds.
Result<CopyPlan> CompileExport(const TrainingModel& model, const std::vector<bool>& on_agent_host);

// The part of every HuggingFace tensor that `rank` reads. The pieces still lead from local tensors to HuggingFace: run
// them through Inverse().
Result<RankPlan> CompileImport(const TrainingModel& model, uint32_t rank);

// For common/layout alone. Both REQUIRE entries in the order of CompileExport.

// kBadData names the first tensor of which not every element is written exactly once, and the ranks that write the same
// elements or the elements that no rank has.
Status ProveTiling(const TrainingModel& model, const std::vector<RankPlan>& ranks);

// Over tensors, ranks and entries in an encoding that names sources: the digest does not depend on the order of a
// TrainingModel's lists.
PlanDigest DigestOf(const TrainingModel& model, const std::vector<bool>& on_agent_host,
                    const std::vector<RankPlan>& ranks);

}  // namespace lockstep::layout
