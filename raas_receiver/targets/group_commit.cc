#include "raas_receiver/targets/group_commit.h"

#include "common/telemetry/log.h"

namespace lockstep::targets {

GroupCommit::GroupCommit(GroupMembers& members, CommitRequest request,
                         std::shared_ptr<const placement::PlacementPlan> plan, const EngineTargetsOptions& options,
                         WorkerPool& pool)
    : members_(members),
      request_(std::move(request)),
      plan_(std::move(plan)),
      options_(options),
      pool_(pool),
      ranks_(members.ranks().begin(), members.ranks().end()) {
  for (const auto& link : ranks_) held_.emplace_back(link->holds());
}

void GroupCommit::Step(std::string_view step) const {
  telemetry::Log(telemetry::LogLevel::kDebug, "engine_step_done",
                 {{"model", options_.model},
                  {"engine", members_.engine()},
                  {"version", request_.version.held.version},
                  {"step", step}});
  if (options_.at_step) options_.at_step(step);
}

// --- phase one ---

Status GroupCommit::Prepare() {
  LS_ASSIGN_OR_RETURN(writes_,
                      GroupWrites::Stage(plan_, request_.version, request_.deltas, held_, options_.stage_bytes, pool_));
  LS_RETURN_IF_ERROR(writes_.HandOver(ranks_, options_.stage_bytes, pool_));
  Step("prepared");
  return OkStatus();
}

// What the ranks that are written hold from now on, until their writes are done.
void GroupCommit::ForgetOutdated() {
  for (const auto& link : ranks_) {
    if (link->holds() != version()) link->SetHolds({});
  }
}

void GroupCommit::DropStaged() const {
  for (const auto& link : ranks_) link->DropStaged();
}

// --- phase two ---

Status GroupCommit::Run() {
  Status status = Hold();
  if (status.ok()) status = Write();
  if (!status.ok()) {
    Undo();
    return status;
  }
  members_.page()->Serve(version());
  for (const auto& link : ranks_) link->SetHolds(version());
  Step("committed");
  Serve(version());
  Step("serving");
  return OkStatus();
}

Status GroupCommit::Hold() {
  const Status asked = members_.ForEach([&](RankLink& link) { return link.Hold(version(), request_.version.label); });
  const os::Deadline deadline(options_.hold_timeout);
  const Status held = members_.ForEach([&](RankLink& link) { return link.AwaitHeld(deadline); });
  LS_RETURN_IF_ERROR(asked);
  LS_RETURN_IF_ERROR(held);
  Step("held");
  return OkStatus();
}

Status GroupCommit::Write() {
  // A rank that ends its connection while it is held may read again.
  if (members_.DropGone()) return {ErrorCode::kAborted, "a rank went before the version was written"};
  if (!writes_.empty()) {
    ControlPage& page = *members_.page();
    page_before_ = PageContent{page.state(), page.serving()};
    page.BeginWriting();
    ForgetOutdated();
    Step("writing");
    LS_RETURN_IF_ERROR(writes_.Run(ranks_, pool_));
    Step("written");
  }
  if (!members_.DropGone()) return OkStatus();
  return {ErrorCode::kAborted, "a rank went while the version was written"};
}

void GroupCommit::Serve(const Held& held) {
  (void)members_.ForEach([&](RankLink& link) { return link.Serve(held); });
  AwaitServing();
}

void GroupCommit::AwaitServing() {
  const os::Deadline deadline(options_.serve_timeout);
  (void)members_.ForEach(
      [&](RankLink& link) { return link.serving().nothing() ? OkStatus() : link.AwaitServing(deadline); });
}

// --- back ---

// Every rank that is left resumes with what it served. Where that cannot be had again, all stay held.
void GroupCommit::Undo() {
  DropStaged();
  (void)members_.DropGone();  // a rank that could not write has no connection any more
  if (!page_before_) {
    (void)members_.ForEach([](RankLink& link) { return link.serving().nothing() ? OkStatus() : link.ServeAgain(); });
    return AwaitServing();
  }
  ControlPage& page = *members_.page();
  const Held served = page_before_->serving;
  const Status back = WriteBack(served);
  if (back.ok()) {
    page.Serve(served);
    return Serve(served);
  }
  for (const auto& link : members_.present()) link->ForgetServing();
  if (page_before_->state == EngineState::kEmpty) return page.Clear();
  telemetry::LogError("engine_inconsistent", back, {{"model", options_.model}, {"engine", members_.engine()}});
}

// Makes `served` whole again, on every rank that is left: also on those that did not have it yet.
Status GroupCommit::WriteBack(const Held& served) {
  // With a newcomer the others may serve the version already that was to be written.
  const TargetVersion& version = request_.version;
  const std::optional<TargetVersion> source = served == version.held ? version : request_.before;
  if (!source || served.nothing() || source->held != served) {
    return {ErrorCode::kState, "what was served before the commit is not at hand"};
  }
  std::shared_ptr<const placement::PlacementPlan> plan = plan_;
  if (source->layout->digest() != version.layout->digest()) {
    LS_ASSIGN_OR_RETURN(plan, CompilePlan(*source->layout, ranks_));
  }
  LS_ASSIGN_OR_RETURN(
      const GroupWrites writes,
      GroupWrites::Stage(plan, *source, request_.deltas, HeldAfterWrites(served), options_.stage_bytes, pool_));
  LS_RETURN_IF_ERROR(writes.Run(ranks_, pool_));
  for (const auto& link : members_.present()) link->SetHolds(served);
  return OkStatus();
}

// What the ranks that are left hold after some of the writes, or all.
HeldByRank GroupCommit::HeldAfterWrites(const Held& served) const {
  const EngineRanks left = members_.ranks();
  HeldByRank held(left.size());
  for (size_t rank = 0; rank < left.size(); ++rank) {
    if (!left[rank]) continue;
    const Held& had = *held_[rank];
    held[rank] = left[rank]->holds();
    // The positions that were written are those that differ: as good as the new version, where it was one of the two.
    if (had == served || had == version()) held[rank] = version();
  }
  return held;
}

}  // namespace lockstep::targets
