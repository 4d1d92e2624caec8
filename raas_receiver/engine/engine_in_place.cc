// Engines in place: the ranks write their own memory, while their server, where one is named, is paused.
#include <algorithm>

#include "common/base/text.h"
#include "raas_receiver/engine/engine.h"
#include "raas_receiver/engine/ranks/rank_connection.h"

namespace lockstep::engine {

VersionRef Engine::InMemory() const {
  const std::vector<RankGroupReport> groups = ranks_.Describe();
  if (groups.empty()) return {};
  const VersionRef first = groups.front().at;
  return std::ranges::all_of(groups, [&](const auto& group) { return group.at == first; }) ? first : VersionRef();
}

EngineOutcome Engine::WriteRanks(const EngineAttempt& attempt) {
  EngineOutcome outcome;
  const VersionRef& held = attempt.current.version.held;
  const telemetry::Moment begun;
  outcome.status = PrepareRanks(attempt);
  outcome.prepare_us = begun.MicrosSince();
  // A group that waits for other hosts keeps what was prepared, as do those beside it.
  if (!ranks_.prepared() || ranks_.apart()) {
    // Memory is whole, and the server may stand still all the same: a receiver ended, or failed, between the two.
    if (!owes_resume_ || !ranks_.AllAt(InMemory()) || (!outcome.status.ok() && !ranks_.apart())) return outcome;
    EndServing();
    Status resumed = driver_->Pause(attempt.current.version);
    if (resumed.ok()) resumed = Resume(attempt.current.version);
    if (outcome.status.ok()) outcome.status = resumed;
    return outcome;
  }
  const auto is_damaged = [&](const replica::PublishedVersion& version) {
    return version.held == held && version.damaged;
  };
  if (is_damaged(context_.replicas.current()) || is_damaged(context_.replicas.previous())) {
    ranks_.Abandon();
    outcome.status = {ErrorCode::kState, Cat("version ", held.version, " was found damaged")};
    return outcome;
  }
  const telemetry::Moment pause;
  const Status written = WritePaused(attempt);
  outcome.pause_us = pause.MicrosSince();
  if (outcome.status.ok()) outcome.status = written;
  for (const RankGroupReport& group : ranks_.Describe()) outcome.written_bytes += group.last_written_bytes;
  return outcome;
}

Status Engine::PrepareRanks(const EngineAttempt& attempt) {
  CommitRequest request{
      .version = attempt.current.data, .before = {}, .deltas = [this](const VersionRef& from, const VersionRef& to) {
        return context_.replicas.DeltasBetween(from, to);
      }};
  if (attempt.before) request.before = attempt.before->data;
  const Status status = ranks_.Prepare(request);
  Enter(State::kPausing);
  context_.changed();
  return status;
}

Status Engine::WritePaused(const EngineAttempt& attempt) {
  EndServing();
  const EngineVersion& version = attempt.current.version;
  EngineVersion before = attempt.before ? attempt.before->version : version;
  before.mode = "resumed";
  {
    MutexLock lock(mutex_);
    paused_at_ = Served();
  }
  // A server that lacks a rank may never answer.
  const Ranks ranks = ranks_.members();
  std::vector<int> sockets;
  for (const auto& rank : ranks) sockets.push_back(rank->fd());
  driver_->CancelAtHangUp(std::move(sockets));
  return CommitPaused(version, before);
}

// The pause. A server resumes only when all ranks of all groups are there, and at one version, also those of other
// hosts; it stays paused else, until the next attempt.
Status Engine::CommitPaused(const EngineVersion& version, const EngineVersion& before) {
  owes_resume_ = over_http();
  const Status gone(ErrorCode::kUnavailable, "its connection ended");
  const Status paused = over_http() && ranks_.lost() ? gone : driver_->Pause(version);
  driver_->CancelAtHangUp({});
  if (!paused.ok()) {
    const bool lost = ranks_.lost();
    ranks_.Abandon();
    if (!lost) return paused;
    return {ErrorCode::kAborted, Cat("a rank went before its server was paused: ", paused.message())};
  }
  const Status written = ranks_.Commit();
  const VersionRef at = InMemory();
  const bool is_whole = ranks_.AllAt(at);
  const Status resumed = is_whole ? Resume(at == version.held ? version : before) : OkStatus();
  if (is_whole && at == version.held) return written.ok() ? resumed : written;
  if (!written.ok()) return resumed.ok() || !over_http() ? written : resumed;
  return {ErrorCode::kState, Cat("not every group of the engine is at version ", version.held.version, " yet")};
}

// Under the name of `serving`, if its ranks are at that version, and else of what they were at before.
Status Engine::Resume(EngineVersion serving) {
  const VersionRef at = InMemory();
  if (over_http()) LS_RETURN_IF_ERROR(ranks_.AgreeServed(at));
  if (serving.held != at) serving.held = {};
  LS_RETURN_IF_ERROR(driver_->Resume(serving));
  owes_resume_ = false;
  return OkStatus();
}

Result<size_t> Engine::CompareWritten(const std::optional<EngineAttempt>& given) {
  if (ranks_.empty()) return 0;
  LS_RETURN_IF_ERROR(CheckComparable(context_.replicas.current()));
  if (!given) return Status(ErrorCode::kState, "no version was given to engines yet");
  return ranks_.Verify(given->current.data);
}

}  // namespace lockstep::engine
