#include "raas_receiver/targets/half_writes.h"

#include <atomic>
#include <map>
#include <mutex>

namespace lockstep {

Result<HalfWrites> HalfWrites::Stage(std::shared_ptr<const PlacementPlan> plan, const TargetVersion& version,
                                     const DeltasBetween& deltas, const HeldByRank& from, uint64_t stage_bytes,
                                     WorkerPool& pool) {
  HalfWrites all;
  all.plan_ = std::move(plan);
  all.layout_ = version.layout;
  const std::vector<Window>& windows = all.plan_->windows();
  std::map<Held, std::vector<bool>> wanted;
  for (size_t window = 0; window < windows.size(); ++window) {
    const std::optional<Held>& held = from[windows[window].rank];
    if (!held || *held == version.held) continue;
    wanted.try_emplace(*held, windows.size()).first->second[window] = true;
  }
  for (auto& [held, taken] : wanted) {
    DeltaChain chain;
    if (!held.nothing()) chain = deltas(held, version.held);
    if (chain.empty()) {
      StagedWrites whole = StagedWrites::Whole(*all.plan_, version.data, taken);
      all.parts_.push_back({std::move(taken), std::move(whole)});
      continue;
    }
    LS_ASSIGN_OR_RETURN(StagedWrites changes, StagedWrites::FromChain(*all.plan_, *all.layout_, std::move(chain),
                                                                      version.data, taken, stage_bytes, pool));
    all.parts_.push_back({std::move(taken), std::move(changes)});
  }
  return all;
}

uint64_t HalfWrites::written_bytes() const {
  uint64_t bytes = 0;
  for (const Part& part : parts_) bytes += part.writes.stats().written_bytes;
  return bytes;
}

Status HalfWrites::Run(EngineRanks ranks, uint32_t half, WorkerPool& pool) const {
  for (const Part& part : parts_) {
    StagedWrites::Memories memories(part.windows.size(), nullptr);
    for (size_t window = 0; window < memories.size(); ++window) {
      const Window& at = plan_->windows()[window];
      if (part.windows[window]) memories[window] = &ranks[at.rank]->memory(half, at.memory);
    }
    LS_RETURN_IF_ERROR(part.writes.Run(memories, pool));
  }
  return OkStatus();
}

Result<bool> HalfEquals(const PlacementPlan& plan, RankLink& link, uint32_t rank, uint32_t half,
                        const TargetVersion& version, WorkerPool& pool) {
  std::mutex mutex;
  Status failed;
  std::atomic<bool> equal = true;
  pool.ParallelFor(plan.windows().size(), [&](size_t window) {
    const Window& at = plan.windows()[window];
    if (at.rank != rank || !equal) return;
    const Result<bool> same =
        link.memory(half, at.memory).Equal(plan.copies(static_cast<uint32_t>(window)), version.data.data());
    if (same.ok() && *same) return;
    equal = false;
    if (same.ok()) return;
    std::lock_guard lock(mutex);
    failed = same.status().WithContext(link.Label());
  });
  if (!failed.ok()) return failed;
  return equal.load();
}

}  // namespace lockstep
