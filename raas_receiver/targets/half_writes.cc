#include "raas_receiver/targets/half_writes.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>

#include "raas_receiver/placement/rules/rules.h"

namespace lockstep::targets {
namespace {

constexpr size_t kComparedCopies = 16;  // that one thread takes at a time

}  // namespace

Result<std::shared_ptr<const placement::PlacementPlan>> CompilePlan(const model::ModelLayout& layout,
                                                                    EngineRanks ranks) {
  std::vector<placement::RankDescription> completed;
  for (const auto& link : ranks) completed.push_back(link->description());
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> unused, placement::CompleteDescriptions(layout, completed));
  return placement::PlacementPlan::Compile(layout, completed, unused);
}

Result<HalfWrites> HalfWrites::Stage(std::shared_ptr<const placement::PlacementPlan> plan, const TargetVersion& version,
                                     const DeltasBetween& deltas, const HeldByRank& from, uint64_t stage_bytes,
                                     WorkerPool& pool) {
  HalfWrites all;
  all.plan_ = std::move(plan);
  all.layout_ = version.layout;
  all.version_ = version.held;
  const std::vector<placement::TargetBuffer>& buffers = all.plan_->buffers();
  std::map<Held, std::vector<bool>> wanted;
  for (size_t buffer = 0; buffer < buffers.size(); ++buffer) {
    const std::optional<Held>& held = from[buffers[buffer].rank];
    if (!held || *held == version.held) continue;
    wanted.try_emplace(*held, buffers.size()).first->second[buffer] = true;
  }
  for (auto& [held, taken] : wanted) {
    payload::DeltaChain chain;
    if (!held.nothing()) chain = deltas(held, version.held);
    if (chain.empty()) {
      placement::StagedWrites whole = placement::StagedWrites::Whole(*all.plan_, version.data, taken);
      all.parts_.push_back({std::move(taken), std::move(whole), /*whole=*/true});
      continue;
    }
    LS_ASSIGN_OR_RETURN(placement::StagedWrites changes,
                        placement::StagedWrites::FromChain(*all.plan_, *all.layout_, std::move(chain), version.data,
                                                           taken, stage_bytes, pool));
    all.parts_.push_back({std::move(taken), std::move(changes)});
  }
  return all;
}

uint64_t HalfWrites::written_bytes() const {
  uint64_t bytes = 0;
  for (const Part& part : parts_) bytes += part.writes.stats().written_bytes;
  return bytes;
}

placement::StagedWrites::Memories HalfWrites::MemoriesOf(const Part& part, EngineRanks ranks, uint32_t half,
                                                         Whose whose) const {
  placement::StagedWrites::Memories memories(part.buffers.size(), nullptr);
  for (size_t buffer = 0; buffer < memories.size(); ++buffer) {
    const placement::TargetBuffer& at = plan_->buffers()[buffer];
    if (!part.buffers[buffer]) continue;
    const bool own = ranks[at.rank]->own(half) != nullptr;
    if (whose == Whose::kAll || own == (whose == Whose::kOwn))
      memories[buffer] = &ranks[at.rank]->memory(half, at.memory);
  }
  return memories;
}

// Of all ranks that are written and write their own memory.
std::vector<OwnWrites*> HalfWrites::OwnOf(EngineRanks ranks, uint32_t half) const {
  std::set<uint32_t> written;
  for (const Part& part : parts_) {
    for (size_t buffer = 0; buffer < part.buffers.size(); ++buffer) {
      if (part.buffers[buffer]) written.insert(plan_->buffers()[buffer].rank);
    }
  }
  std::vector<OwnWrites*> own;
  for (const uint32_t rank : written) {
    if (ranks[rank]->own(half) != nullptr) own.push_back(ranks[rank]->own(half));
  }
  return own;
}

Status HalfWrites::HandOver(EngineRanks ranks, uint32_t half, uint64_t bytes, WorkerPool& pool) {
  const std::vector<OwnWrites*> own = OwnOf(ranks, half);
  if (own.empty()) return OkStatus();
  for (OwnWrites* rank : own) rank->HandOverOnly();
  for (Part& part : parts_) {
    if (part.whole) continue;
    part.handed_over = part.writes.TakeLists(bytes);
    LS_RETURN_IF_ERROR(part.writes.RunFirst(part.handed_over, MemoriesOf(part, ranks, half, Whose::kOwn), pool));
  }
  return OkStatus();
}

Status HalfWrites::Run(EngineRanks ranks, uint32_t half, WorkerPool& pool) const {
  const std::vector<OwnWrites*> own = OwnOf(ranks, half);
  for (OwnWrites* rank : own) rank->WriteAtOnce();
  for (const Part& part : parts_) {
    if (part.handed_over != 0) {
      LS_RETURN_IF_ERROR(part.writes.RunFirst(part.handed_over, MemoriesOf(part, ranks, half, Whose::kLent), pool));
    }
    LS_RETURN_IF_ERROR(part.writes.RunRest(part.handed_over, MemoriesOf(part, ranks, half, Whose::kAll), pool));
  }
  Status first;
  for (OwnWrites* rank : own) {
    const Status asked = rank->WriteLast(version_);
    if (first.ok()) first = asked;
  }
  for (OwnWrites* rank : own) {
    const Status written = rank->AwaitLast();
    if (first.ok()) first = written;
  }
  return first;
}

Result<bool> HalfEquals(const placement::PlacementPlan& plan, RankLink& link, uint32_t half,
                        const TargetVersion& version, WorkerPool& pool) {
  struct Part {
    placement::TargetMemory* memory;
    std::span<const layout::StridedCopy> copies;
    std::span<const StridedRange> zeros;
  };
  std::vector<Part> parts;
  for (uint32_t buffer = 0; buffer < plan.buffers().size(); ++buffer) {
    const placement::TargetBuffer& at = plan.buffers()[buffer];
    if (at.rank != link.rank()) continue;
    std::span<const layout::StridedCopy> copies = plan.copies(buffer);
    for (; !copies.empty(); copies = copies.subspan(std::min(copies.size(), kComparedCopies))) {
      parts.push_back({&link.memory(half, at.memory), copies.first(std::min(copies.size(), kComparedCopies)), {}});
    }
    parts.push_back({&link.memory(half, at.memory), {}, plan.zeros(buffer)});
  }
  std::mutex mutex;
  Status failed;
  std::atomic<bool> equal = true;
  pool.ParallelFor(parts.size(), [&](size_t part) {
    if (!equal) return;
    const auto& [memory, copies, zeros] = parts[part];
    Result<bool> same = memory->Equal(copies, version.data.data());
    if (same.ok() && *same) same = memory->IsZero(zeros);
    if (same.ok() && *same) return;
    equal = false;
    std::lock_guard lock(mutex);
    if (!same.ok()) failed = same.status().WithContext(link.Label());
  });
  if (!failed.ok()) return failed;
  return equal.load();
}

}  // namespace lockstep::targets
