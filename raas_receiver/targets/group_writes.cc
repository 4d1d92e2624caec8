#include "raas_receiver/targets/group_writes.h"

#include <map>
#include <utility>

namespace lockstep::targets {

Result<CompiledPlan> CompilePlan(const model::ModelLayout& layout, EngineRanks ranks) {
  std::vector<placement::RankDescription> described;
  for (const auto& rank : ranks) described.push_back(rank->description());
  CompiledPlan plan;
  LS_ASSIGN_OR_RETURN(plan.unused, placement::UnusedTensors(layout, described));
  LS_ASSIGN_OR_RETURN(plan.placement, placement::CompilePlacement(layout, described, plan.unused));
  return plan;
}

Result<GroupWrites> GroupWrites::Create(std::shared_ptr<const placement::PlacementPlan> plan,
                                        const TargetVersion& version, const DeltasBetween& deltas,
                                        const HeldByRank& from, uint64_t batch_bytes) {
  GroupWrites all;
  all.plan_ = std::move(plan);
  all.layout_ = version.layout;
  all.data_ = version.data;
  all.version_ = version.held;
  all.batch_bytes_ = batch_bytes;
  std::map<VersionRef, std::vector<uint32_t>> holders;
  for (uint32_t rank = 0; rank < from.size(); ++rank) {
    if (from[rank] && *from[rank] != version.held) holders[*from[rank]].push_back(rank);
  }
  for (auto& [held, ranks] : holders) {
    Part& part = all.parts_.emplace_back(Part{ranks, std::nullopt});
    payload::DeltaChain chain;
    if (!held.nothing()) chain = deltas(held, version.held);
    if (chain.empty()) continue;
    LS_ASSIGN_OR_RETURN(part.changes, placement::DeltaWrites::Create(*all.plan_, ranks, *all.layout_, std::move(chain),
                                                                     version.data, batch_bytes));
  }
  return all;
}

uint64_t GroupWrites::written_bytes() const {
  uint64_t bytes = 0;
  for (const Part& part : parts_) {
    if (part.changes) {
      bytes += part.changes->written_bytes();
    } else {
      for (const uint32_t rank : part.ranks) bytes += (*plan_)[rank].bytes();
    }
  }
  return bytes;
}

Status GroupWrites::HandOver(EngineRanks ranks, uint64_t bytes, WorkerPool& pool) {
  const auto hand_over = [&](uint32_t rank, const os::UniqueFd& batch) { return ranks[rank]->HandOver(batch); };
  for (Part& part : parts_) {
    if (part.changes) LS_RETURN_IF_ERROR(part.changes->HandOver(bytes, hand_over, pool));
  }
  return OkStatus();
}

// Everything, by all ranks of the part side by side.
Status GroupWrites::WriteAll(const Part& part, EngineRanks ranks, WorkerPool& pool) const {
  return pool.ParallelTry(part.ranks.size(), [&](size_t i) -> Status {
    const uint32_t rank = part.ranks[i];
    placement::BatchWriter writer(
        data_, [&](const os::UniqueFd& batch) { return ranks[rank]->Write(batch); }, batch_bytes_);
    LS_RETURN_IF_ERROR(writer.Fill((*plan_)[rank]));
    return writer.Flush();
  });
}

Status GroupWrites::Run(EngineRanks ranks, WorkerPool& pool) {
  const auto write = [&](uint32_t rank, const os::UniqueFd& batch) { return ranks[rank]->Write(batch); };
  Status first;
  for (Part& part : parts_) {
    if (!first.ok()) break;
    first = part.changes ? part.changes->Run(write, pool) : WriteAll(part, ranks, pool);
  }
  const auto for_each = [&](const auto& call) {
    for (const Part& part : parts_) {
      for (const uint32_t rank : part.ranks) {
        const Status status = call(*ranks[rank]);
        if (first.ok()) first = status;
      }
    }
  };
  if (first.ok()) for_each([&](RankConnection& rank) { return rank.FinishWriting(version_); });
  // After an error too: no rank may still be at it.
  for_each([](RankConnection& rank) { return rank.AwaitWritten(); });
  return first;
}

Result<bool> HoldsVersion(const placement::PlacementPlan& plan, RankConnection& rank, const TargetVersion& version,
                          uint64_t batch_bytes) {
  bool equal = true;
  const auto compare = [&](const os::UniqueFd& batch) -> Status {
    LS_ASSIGN_OR_RETURN(equal, rank.Compare(batch));
    return equal ? OkStatus() : Status(ErrorCode::kAborted, "they differ");
  };
  placement::BatchWriter writer(version.data, compare, batch_bytes);
  Status status = writer.Fill(plan[rank.rank()]);
  if (status.ok()) status = writer.Flush();
  if (!equal) return false;
  LS_RETURN_IF_ERROR(status);
  return true;
}

}  // namespace lockstep::targets
