// The two phases of EngineGroup's commit.
#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "raas_receiver/targets/engine_group.h"

namespace lockstep {

namespace {

std::chrono::microseconds Since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin);
}

}  // namespace

void EngineGroup::Step(std::string_view step) const {
  if (options_.at_step) options_.at_step(step);
}

Status EngineGroup::Failed(Status status) {
  status = status.WithContext(Cat("engine ", engine_));
  ++report_.failures;
  report_.last_error = status.message();
  LogError("engine_commit_failed", status, {{"model", options_.model}, {"engine", engine_}});
  return status;
}

// --- phase one ---

// The half that the group does not serve; that of some rank may be the same all the same.
uint32_t EngineGroup::TargetHalf() const {
  if (halves_ == 1) return 0;
  const bool serving = page_->state() == EngineState::kServing;
  return 1 - (serving ? page_->half() : ranks_.front()->half());
}

Status EngineGroup::Prepare(const TargetVersion& version, const std::optional<TargetVersion>& before,
                            const DeltasBetween& deltas) {
  work_.reset();
  if (!complete()) return OkStatus();
  const auto begin = Clock::now();
  const Status status = TryPrepare(version, before, deltas);
  report_.last_prepare = Since(begin);
  if (!status.ok()) return Failed(status);
  if (work_) Step("prepared");
  return OkStatus();
}

Status EngineGroup::TryPrepare(const TargetVersion& version, const std::optional<TargetVersion>& before,
                               const DeltasBetween& deltas) {
  LS_RETURN_IF_ERROR(CompileFor(*version.layout));
  LS_RETURN_IF_ERROR(SendPage());
  LS_RETURN_IF_ERROR(CheckClaims(version, before));
  Adopt();
  if (At(version.held)) return OkStatus();
  Work work{
      .version = version, .before = before, .deltas = deltas, .plan = plan_, .ranks = ranks_, .half = TargetHalf()};
  work.written.resize(ranks_.size());
  HeldByRank idle(ranks_.size());
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    HeldByRank& when = ranks_[rank]->half() == work.half ? work.written : idle;
    when[rank] = ranks_[rank]->holds(work.half);
  }
  const auto stage = [&](const HeldByRank& from) {
    return HalfWrites::Stage(plan_, version, deltas, from, options_.stage_bytes, pool_);
  };
  LS_ASSIGN_OR_RETURN(const HalfWrites now, stage(idle));
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (idle[rank]) ranks_[rank]->SetHolds(work.half, {});
  }
  LS_RETURN_IF_ERROR(now.Run(ranks_, work.half, pool_));
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (idle[rank]) ranks_[rank]->SetHolds(work.half, version.held);
  }
  work.idle_bytes = now.written_bytes();
  LS_ASSIGN_OR_RETURN(work.writes, stage(work.written));
  work_ = std::move(work);
  return OkStatus();
}

// --- phase two ---

Status EngineGroup::Commit() {
  Work work = *std::exchange(work_, std::nullopt);
  const auto begin = Clock::now();
  if (const Status status = TryCommit(work); !status.ok()) return Failed(status);
  report_.last_pause = Since(begin);
  report_.last_written_bytes = work.idle_bytes + work.writes.written_bytes();
  report_.last_error.clear();
  ++report_.commits;
  Log(LogLevel::kInfo, "engine_committed",
      {{"model", options_.model},
       {"engine", engine_},
       {"run", ToHex(work.version.held.run)},
       {"version", work.version.held.version},
       {"ranks", attached()},
       {"written_bytes", report_.last_written_bytes},
       {"pause_s", std::chrono::duration<double>(report_.last_pause).count()}});
  return OkStatus();
}

Status EngineGroup::TryCommit(Work& work) {
  Status status = HoldAll(work.version.held);
  if (status.ok()) status = Write(work);
  if (!status.ok()) {
    GiveUp(work);
    return status;
  }
  page_->Serve(work.version.held, work.half);
  for (const auto& link : ranks_) link->SetHolds(work.half, work.version.held);
  Step("committed");
  ServeAll(work.version.held, work.half);
  Step("serving");
  return OkStatus();
}

// Calls every rank that is there, drops those where that fails, and answers the first error.
template <typename Call>
Status EngineGroup::CallRanks(const Call& call) {
  Status first;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank]) continue;
    const Status status = call(*ranks_[rank]);
    if (status.ok()) continue;
    Drop(rank, status);
    if (first.ok()) first = status;
  }
  return first;
}

Status EngineGroup::HoldAll(const Held& next) {
  const Status asked = CallRanks([&](RankLink& link) { return link.Hold(next); });
  const Deadline deadline(options_.hold_timeout);
  const Status held = CallRanks([&](RankLink& link) { return link.AwaitHeld(deadline); });
  LS_RETURN_IF_ERROR(asked);
  LS_RETURN_IF_ERROR(held);
  Step("held");
  return OkStatus();
}

Status EngineGroup::Write(Work& work) {
  // A rank that ends its connection while it is held may read again.
  if (DropGone()) return {ErrorCode::kAborted, "a rank went before the version was written"};
  if (!work.writes.empty()) {
    work.state_before = page_->state();
    work.served = page_->serving();
    work.writing = true;
    page_->BeginWriting();
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (work.written[rank] && *work.written[rank] != work.version.held) ranks_[rank]->SetHolds(work.half, {});
    }
    Step("writing");
    LS_RETURN_IF_ERROR(work.writes.Run(work.ranks, work.half, pool_));
    Step("written");
  }
  if (!DropGone()) return OkStatus();
  return {ErrorCode::kAborted, "a rank went while the version was written"};
}

// Every rank that is left goes on with what it served. Where that cannot be had again, all stay held.
void EngineGroup::GiveUp(Work& work) {
  if (!work.writing) {
    (void)CallRanks([](RankLink& link) { return link.serving().nothing() ? OkStatus() : link.ServeAgain(); });
    return AwaitServing();
  }
  const Status back = WriteBack(work);
  if (back.ok()) {
    page_->Serve(work.served, page_->half());
    return ServeAll(work.served, page_->half());
  }
  for (const auto& link : links()) link->ForgetServing();
  if (work.state_before == EngineState::kEmpty) return page_->Clear();
  LogError("engine_mixed", back, {{"model", options_.model}, {"engine", engine_}});
}

// Makes what was served whole again, on every rank that is left: also on those that did not have it yet.
Status EngineGroup::WriteBack(Work& work) {
  // With a newcomer the others may serve the version already that was to be written.
  const std::optional<TargetVersion> source =
      work.served == work.version.held ? std::optional(work.version) : work.before;
  if (!source || work.served.nothing() || source->held != work.served) {
    return {ErrorCode::kState, "what was served before the commit is not at hand"};
  }
  const uint32_t half = page_->half();
  const Held written = work.version.held;
  HeldByRank from(ranks_.size());
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank]) continue;
    const std::optional<Held>& had = work.written[rank];
    from[rank] = ranks_[rank]->holds(half);
    // The positions that were written are those that differ: as good as the new version, where it was one of the two.
    if (half == work.half && had && (*had == work.served || *had == written)) from[rank] = written;
  }
  Plan plan = work.plan;
  if (source->layout->digest() != work.version.layout->digest()) {
    LS_ASSIGN_OR_RETURN(plan, CompilePlan(*source->layout, work.ranks));
  }
  LS_ASSIGN_OR_RETURN(const HalfWrites writes,
                      HalfWrites::Stage(plan, *source, work.deltas, from, options_.stage_bytes, pool_));
  LS_RETURN_IF_ERROR(writes.Run(work.ranks, half, pool_));
  for (const auto& link : links()) link->SetHolds(half, work.served);
  return OkStatus();
}

void EngineGroup::ServeAll(const Held& held, uint32_t half) {
  (void)CallRanks([&](RankLink& link) { return link.Serve(held, half); });
  AwaitServing();
}

void EngineGroup::AwaitServing() {
  const Deadline deadline(options_.serve_timeout);
  (void)CallRanks([&](RankLink& link) { return link.serving().nothing() ? OkStatus() : link.AwaitServing(deadline); });
}

}  // namespace lockstep
