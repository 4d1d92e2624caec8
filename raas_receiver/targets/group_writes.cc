#include "raas_receiver/targets/group_writes.h"

#include <map>
#include <utility>

#include "raas_receiver/placement/rules/rules.h"

namespace lockstep::targets {

Result<std::shared_ptr<const placement::PlacementPlan>> CompilePlan(const model::ModelLayout& layout,
                                                                    EngineRanks ranks) {
  std::vector<placement::RankDescription> completed;
  for (const auto& link : ranks) completed.push_back(link->description());
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> unused, placement::CompleteDescriptions(layout, completed));
  return placement::PlacementPlan::Compile(layout, completed, unused);
}

Result<GroupWrites> GroupWrites::Stage(std::shared_ptr<const placement::PlacementPlan> plan,
                                       const TargetVersion& version, const DeltasBetween& deltas,
                                       const HeldByRank& from, uint64_t stage_bytes, WorkerPool& pool) {
  GroupWrites all;
  all.plan_ = std::move(plan);
  all.layout_ = version.layout;
  all.version_ = version.held;
  struct Wanted {
    std::vector<bool> buffers;
    std::set<uint32_t> ranks;
  };
  const std::vector<placement::TargetBuffer>& buffers = all.plan_->buffers();
  std::map<Held, Wanted> wanted;
  for (size_t buffer = 0; buffer < buffers.size(); ++buffer) {
    const uint32_t rank = buffers[buffer].rank;
    const std::optional<Held>& held = from[rank];
    if (!held || *held == version.held) continue;
    Wanted& taken = wanted[*held];
    taken.buffers.resize(buffers.size());
    taken.buffers[buffer] = true;
    taken.ranks.insert(rank);
  }
  for (const auto& [held, taken] : wanted) {
    payload::DeltaChain chain;
    if (!held.nothing()) chain = deltas(held, version.held);
    if (chain.empty()) {
      all.parts_.push_back(
          {taken.ranks, placement::StagedWrites::Whole(*all.plan_, version.data, taken.buffers), /*whole=*/true});
      continue;
    }
    LS_ASSIGN_OR_RETURN(placement::StagedWrites changes,
                        placement::StagedWrites::FromChain(*all.plan_, *all.layout_, std::move(chain), version.data,
                                                           taken.buffers, stage_bytes, pool));
    all.parts_.push_back({taken.ranks, std::move(changes)});
  }
  return all;
}

uint64_t GroupWrites::written_bytes() const {
  uint64_t bytes = 0;
  for (const Part& part : parts_) bytes += part.writes.stats().written_bytes;
  return bytes;
}

// Of all ranks that are written.
std::vector<OwnWrites*> GroupWrites::WritesOf(EngineRanks ranks) const {
  std::vector<OwnWrites*> writes;
  for (const Part& part : parts_) {
    for (const uint32_t rank : part.ranks) writes.push_back(&ranks[rank]->writes());
  }
  return writes;
}

placement::StagedWrites::Writers GroupWrites::WritersOf(const Part& part, EngineRanks ranks) const {
  placement::StagedWrites::Writers writers(ranks.size(), nullptr);
  for (const uint32_t rank : part.ranks) writers[rank] = &ranks[rank]->writes().writer();
  return writers;
}

Status GroupWrites::HandOver(EngineRanks ranks, uint64_t bytes, WorkerPool& pool) {
  for (OwnWrites* writes : WritesOf(ranks)) writes->HandOverOnly();
  for (Part& part : parts_) {
    if (part.whole) continue;
    part.handed_over = part.writes.TakeLists(bytes);
    LS_RETURN_IF_ERROR(part.writes.RunFirst(part.handed_over, WritersOf(part, ranks), pool));
  }
  return OkStatus();
}

Status GroupWrites::RunParts(EngineRanks ranks, WorkerPool& pool) const {
  for (const Part& part : parts_) {
    LS_RETURN_IF_ERROR(part.writes.RunRest(part.handed_over, WritersOf(part, ranks), pool));
  }
  return OkStatus();
}

Status GroupWrites::Run(EngineRanks ranks, WorkerPool& pool) const {
  const std::vector<OwnWrites*> written = WritesOf(ranks);
  for (OwnWrites* writes : written) writes->WriteAtOnce();
  Status first = RunParts(ranks, pool);
  if (first.ok()) {
    for (OwnWrites* writes : written) {
      const Status asked = writes->WriteLast(version_);
      if (first.ok()) first = asked;
    }
  }
  // After an error too: nobody is to be at it still.
  for (OwnWrites* writes : written) {
    const Status done = writes->AwaitWritten();
    if (first.ok()) first = done;
  }
  return first;
}

Result<bool> HoldsVersion(const placement::PlacementPlan& plan, RankLink& link, const TargetVersion& version) {
  const auto add = [&](placement::PortionWriter& writer, const bool& equal) {
    for (uint32_t buffer = 0; buffer < plan.buffers().size(); ++buffer) {
      const placement::TargetBuffer& at = plan.buffers()[buffer];
      if (at.rank != link.rank()) continue;
      for (const layout::StridedCopy& copy : plan.copies(buffer)) {
        if (!equal) return OkStatus();
        LS_RETURN_IF_ERROR(writer.Copy(at.memory, {&copy, 1}, version.data.data()));
      }
      LS_RETURN_IF_ERROR(writer.Zero(at.memory, plan.zeros(buffer)));
    }
    return OkStatus();
  };
  Result<bool> equal = link.writes().Compare(add);
  if (!equal.ok()) return equal.status().WithContext(link.Label());
  return equal;
}

}  // namespace lockstep::targets
