#include "raas_receiver/targets/group_commit.h"

#include "common/telemetry/log.h"

namespace lockstep::targets {

GroupCommit::GroupCommit(GroupMembers& members, TargetVersion version, const DeltasBetween& deltas,
                         std::shared_ptr<const placement::PlacementPlan> plan, const EngineTargetsOptions& options)
    : members_(members),
      version_(std::move(version)),
      deltas_(deltas),
      plan_(std::move(plan)),
      options_(options),
      pool_(options_.threads),
      ranks_(members.ranks().begin(), members.ranks().end()),
      held_(ranks_.size()) {
  for (const auto& rank : ranks_) {
    if (rank->reads() != version_.held || rank->holds() != version_.held) held_[rank->rank()] = rank->holds();
  }
}

void GroupCommit::Step(std::string_view step) const {
  telemetry::Log(
      telemetry::LogLevel::kDebug, "engine_step_done",
      {{"model", options_.model}, {"engine", members_.engine()}, {"version", version_.held.version}, {"step", step}});
  if (options_.at_step) options_.at_step(step);
}

// As GroupMembers::ForEach, for those that take part.
template <typename Call>
Status GroupCommit::ForEachPart(const Call& call) {
  return members_.ForEach([&](RankConnection& rank) { return held_[rank.rank()] ? call(rank) : OkStatus(); });
}

// --- phase one ---

Status GroupCommit::Prepare() {
  LS_ASSIGN_OR_RETURN(writes_, GroupWrites::Create(plan_, version_, deltas_, held_, options_.batch_bytes));
  LS_RETURN_IF_ERROR(writes_.HandOver(ranks_, options_.stage_bytes, pool_));
  Step("prepared");
  return OkStatus();
}

void GroupCommit::DropStaged() const {
  for (const auto& rank : ranks_) rank->DropStaged();
}

// --- phase two ---

Status GroupCommit::Run() {
  Status status = Pause();
  if (status.ok()) status = Write();
  if (status.ok()) {
    Serve();
  } else {
    GiveUp();
  }
  return status;
}

Status GroupCommit::Pause() {
  const Status asked = ForEachPart([&](RankConnection& rank) { return rank.Pause(version(), version_.label); });
  const os::Deadline deadline(options_.pause_timeout);
  const Status paused = ForEachPart([&](RankConnection& rank) { return rank.AwaitPaused(deadline); });
  LS_RETURN_IF_ERROR(asked);
  LS_RETURN_IF_ERROR(paused);
  Step("paused");
  return OkStatus();
}

// Also of those that take no part: no rank is to serve what another one of its engine may not have.
Status GroupCommit::CheckAllThere() {
  if (!members_.DropGone() && members_.complete()) return OkStatus();
  return {ErrorCode::kAborted, "a rank went before all had the version"};
}

Status GroupCommit::Write() {
  LS_RETURN_IF_ERROR(CheckAllThere());
  LS_RETURN_IF_ERROR(writes_.Run(ranks_, pool_));
  Step("written");
  return CheckAllThere();
}

// From here on nothing is taken back.
void GroupCommit::Serve() {
  (void)ForEachPart([&](RankConnection& rank) {
    Step("serve");
    return rank.Serve(version());
  });
  AwaitServing();
  Step("serving");
}

void GroupCommit::GiveUp() {
  DropStaged();
  (void)members_.DropGone();  // a rank that could not write has no connection any more
  (void)ForEachPart([](RankConnection& rank) { return rank.Resume(); });
  AwaitServing();
}

void GroupCommit::AwaitServing() {
  const os::Deadline deadline(options_.serve_timeout);
  (void)ForEachPart(
      [&](RankConnection& rank) { return rank.reads().nothing() ? OkStatus() : rank.AwaitServing(deadline); });
}

}  // namespace lockstep::targets
