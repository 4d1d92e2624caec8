#include "raas_receiver/targets/group_commit.h"

#include "common/telemetry/log.h"

namespace lockstep::targets {

GroupCommit::GroupCommit(GroupMembers& members, TargetVersion version, const DeltasBetween& deltas,
                         std::shared_ptr<const placement::PlacementPlan> plan, const EngineTargetsOptions& options,
                         WorkerPool& pool)
    : members_(members),
      version_(std::move(version)),
      deltas_(deltas),
      plan_(std::move(plan)),
      options_(options),
      pool_(pool),
      ranks_(members.ranks().begin(), members.ranks().end()),
      held_(ranks_.size()) {
  for (const auto& link : ranks_) {
    if (link->reads() != version_.held || link->holds() != version_.held) held_[link->rank()] = link->holds();
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
  return members_.ForEach([&](RankConnection& link) { return held_[link.rank()] ? call(link) : OkStatus(); });
}

// --- phase one ---

Status GroupCommit::Prepare() {
  LS_ASSIGN_OR_RETURN(writes_, GroupWrites::Create(plan_, version_, deltas_, held_, options_.batch_bytes));
  LS_RETURN_IF_ERROR(writes_.HandOver(ranks_, options_.stage_bytes, pool_));
  Step("prepared");
  return OkStatus();
}

void GroupCommit::DropStaged() const {
  for (const auto& link : ranks_) link->DropStaged();
}

// --- phase two ---

Status GroupCommit::Run() {
  Status status = Hold();
  if (status.ok()) status = Write();
  if (status.ok()) {
    Serve();
  } else {
    GiveUp();
  }
  return status;
}

Status GroupCommit::Hold() {
  const Status asked = ForEachPart([&](RankConnection& link) { return link.Hold(version(), version_.label); });
  const os::Deadline deadline(options_.hold_timeout);
  const Status held = ForEachPart([&](RankConnection& link) { return link.AwaitHeld(deadline); });
  LS_RETURN_IF_ERROR(asked);
  LS_RETURN_IF_ERROR(held);
  Step("held");
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
  (void)ForEachPart([&](RankConnection& link) {
    Step("serve");
    return link.Serve(version());
  });
  AwaitServing();
  Step("serving");
}

void GroupCommit::GiveUp() {
  DropStaged();
  (void)members_.DropGone();  // a rank that could not write has no connection any more
  (void)ForEachPart([](RankConnection& link) { return link.Resume(); });
  AwaitServing();
}

void GroupCommit::AwaitServing() {
  const os::Deadline deadline(options_.serve_timeout);
  (void)ForEachPart(
      [&](RankConnection& link) { return link.reads().nothing() ? OkStatus() : link.AwaitServing(deadline); });
}

}  // namespace lockstep::targets
