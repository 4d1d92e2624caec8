#include "raas_receiver/engine/ranks/rank_commit.h"

#include <map>
#include <utility>

#include "common/telemetry/log.h"
#include "raas_receiver/engine/ranks/rank_group.h"

namespace lockstep::engine {
RankCommit::RankCommit(RankGroup& group, VersionData version, std::shared_ptr<const PlacementPlan> plan,
                       const EngineRanksOptions& options)
    : group_(group),
      version_(std::move(version)),
      plan_(std::move(plan)),
      options_(options),
      pool_(options_.threads),
      ranks_(group_.ranks()) {
  for (const auto& rank : ranks_) {
    takes_part_.push_back(rank->reads() != version_.held || rank->holds() != version_.held);
  }
}

uint64_t RankCommit::written_bytes() const {
  uint64_t bytes = 0;
  for (const Holders& holders : holders_) {
    if (holders.changes) {
      bytes += holders.changes->written_bytes();
    } else {
      for (const uint32_t rank : holders.ranks) bytes += (*plan_)[rank].bytes();
    }
  }
  return bytes;
}

void RankCommit::Step(std::string_view step) const {
  telemetry::Log(
      telemetry::LogLevel::kDebug, "engine_step_done",
      {{"model", options_.model}, {"engine", group_.name()}, {"version", version_.held.version}, {"step", step}});
  if (options_.at_step) options_.at_step(step);
}

// As RankGroup::ForEach, for those that take part.
template <typename Call>
Status RankCommit::ForEachPart(const Call& call) {
  return group_.ForEach([&](RankConnection& rank) { return takes_part_[rank.place()] ? call(rank) : OkStatus(); });
}

// --- phase one ---

Status RankCommit::Prepare(const DeltasBetween& deltas) {
  std::map<VersionRef, std::vector<uint32_t>> by_version;
  for (const auto& rank : ranks_) {
    if (rank->holds() != version_.held) by_version[rank->holds()].push_back(static_cast<uint32_t>(rank->place()));
  }
  for (auto& [held, ranks] : by_version) {
    Holders& holders = holders_.emplace_back(Holders{ranks, std::nullopt});
    payload::DeltaChain chain;
    if (!held.nothing()) chain = deltas(held, version_.held);
    if (chain.empty()) continue;
    LS_ASSIGN_OR_RETURN(holders.changes, DeltaWrites::Create(*plan_, ranks, *version_.layout, std::move(chain),
                                                             version_.data, options_.batch_bytes));
  }
  uint64_t stage_bytes = options_.stage_bytes;
  const auto stage = [&](uint32_t rank, const os::UniqueFd& batch) { return ranks_[rank]->Stage(batch); };
  for (Holders& holders : holders_) {
    if (holders.changes) LS_RETURN_IF_ERROR(holders.changes->Stage(stage_bytes, stage, pool_));
  }
  Step("prepared");
  return OkStatus();
}

void RankCommit::DropStaged() const {
  for (const auto& rank : ranks_) rank->DropStaged();
}

// --- phase two ---

Status RankCommit::Run() {
  Status status = Pause();
  if (status.ok()) status = Write();
  if (status.ok()) {
    Serve();
  } else {
    GiveUp();
  }
  return status;
}

Status RankCommit::Pause() {
  const Status asked = ForEachPart([&](RankConnection& rank) { return rank.Pause(version(), version_.label); });
  const os::Deadline deadline(options_.pause_timeout);
  const Status paused = ForEachPart([&](RankConnection& rank) { return rank.AwaitPaused(deadline); });
  LS_RETURN_IF_ERROR(asked);
  LS_RETURN_IF_ERROR(paused);
  Step("paused");
  return group_.Agree(AgreeStep::kPaused, version());
}

Status RankCommit::Write() {
  Status first;
  for (Holders& holders : holders_) {
    if (first.ok()) first = WriteAll(holders);
  }
  const auto for_each = [&](const auto& call) {
    for (const Holders& holders : holders_) {
      for (const uint32_t rank : holders.ranks) {
        const Status status = call(*ranks_[rank]);
        if (first.ok()) first = status;
      }
    }
  };
  if (first.ok()) for_each([&](RankConnection& rank) { return rank.FinishWriting(version()); });
  // After an error too: no rank may still be at it.
  for_each([](RankConnection& rank) { return rank.AwaitWritten(); });
  LS_RETURN_IF_ERROR(first);
  Step("written");
  return group_.Agree(AgreeStep::kWritten, version());
}

// What `holders` lack: by all of them side by side.
Status RankCommit::WriteAll(Holders& holders) {
  const auto write = [&](uint32_t rank, const os::UniqueFd& batch) { return ranks_[rank]->Write(batch); };
  if (holders.changes) return holders.changes->Run(write, pool_);
  return pool_.ParallelTry(holders.ranks.size(), [&](size_t i) -> Status {
    const uint32_t rank = holders.ranks[i];
    BatchWriter writer(
        version_.data, [&](const os::UniqueFd& batch) { return write(rank, batch); }, options_.batch_bytes);
    LS_RETURN_IF_ERROR(writer.Fill((*plan_)[rank]));
    return writer.Flush();
  });
}

// From here on nothing is taken back.
void RankCommit::Serve() {
  (void)ForEachPart([&](RankConnection& rank) {
    Step("serve");
    return rank.Serve(version());
  });
  AwaitServing();
  Step("serving");
}

void RankCommit::GiveUp() {
  DropStaged();
  (void)group_.DropGone();  // a rank that could not write has no connection any more
  (void)ForEachPart([](RankConnection& rank) { return rank.Resume(); });
  AwaitServing();
}

void RankCommit::AwaitServing() {
  const os::Deadline deadline(options_.serve_timeout);
  (void)ForEachPart(
      [&](RankConnection& rank) { return rank.reads().nothing() ? OkStatus() : rank.AwaitServing(deadline); });
}

}  // namespace lockstep::engine
