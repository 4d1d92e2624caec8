#include "raas_receiver/session/engine_updater.h"

#include <algorithm>

#include "common/base/text.h"

namespace lockstep::session {
namespace {

using std::chrono::microseconds;
using Clock = std::chrono::steady_clock;

microseconds Since(Clock::time_point begin) {
  return std::chrono::duration_cast<microseconds>(Clock::now() - begin);
}

// What the server serves after `outcome`, as a version.
Held ServedAfter(engines::Serving outcome, const engines::EngineVersion& version,
                 const std::optional<engines::EngineVersion>& last_good, const Held& served) {
  switch (outcome) {
    case engines::Serving::kNew:
      return version.held;
    case engines::Serving::kOld:
      return served;
    case engines::Serving::kLastGood:
      return last_good ? last_good->held : Held();
    case engines::Serving::kUnknown:
      break;
  }
  return {};
}

targets::EngineTargetsOptions WithPauses(targets::EngineTargetsOptions options, bool pauses_servers) {
  options.pauses_servers = pauses_servers;
  return options;
}

}  // namespace

EngineUpdater::EngineUpdater(EngineUpdaterOptions options, std::unique_ptr<engines::EngineDriver> driver,
                             replica::ReplicaPair& replicas, WorkerPool& pool)
    : options_(std::move(options)),
      driver_(std::move(driver)),
      replicas_(replicas),
      targets_(WithPauses(options_.targets, OverHttp()), pool),
      owes_resume_(in_place() && OverHttp()) {}

bool EngineUpdater::Behind(const Held& served) const {
  const Held current = replicas_.current().held;
  if (current.nothing()) return false;
  if (!in_place()) return served != current;
  return targets_.Behind(current) || (owes_resume_ && targets_.AllAt(current));
}

bool EngineUpdater::TriesAgain() const {
  if (in_place()) return true;
  return OverHttp() && reverted_from_ != replicas_.current().held;
}

Held EngineUpdater::ServedInPlace() const {
  const std::vector<targets::EngineReport> engines = targets_.Describe();
  if (engines.empty()) return {};
  const Held first = engines.front().serving;
  const bool same = std::all_of(engines.begin(), engines.end(),
                                [&](const targets::EngineReport& engine) { return engine.serving == first; });
  return same ? first : Held();
}

engines::EngineVersion EngineUpdater::Describe(const replica::PublishedVersion& version,
                                               const std::string& mode) const {
  return {options_.targets.model, version.held, version.path, mode};
}

EngineOutcome EngineUpdater::Serve(const std::string& mode, const Held& served) {
  const auto begin = Clock::now();
  const engines::EngineVersion version = Describe(replicas_.current(), mode);
  EngineOutcome outcome = in_place() ? Write(version) : Load(version, served);
  outcome.total = Since(begin);
  return outcome;
}

EngineOutcome EngineUpdater::Load(const engines::EngineVersion& version, const Held& served) {
  const replica::PublishedVersion previous = replicas_.previous();
  std::optional<engines::EngineVersion> last_good;
  if (!previous.held.nothing()) last_good = Describe(previous, "last_good");
  engines::LoadOutcome loaded = driver_->Load(version, last_good);
  if (loaded.serving == engines::Serving::kLastGood) reverted_from_ = version.held;
  return {std::move(loaded.status), ServedAfter(loaded.serving, version, last_good, served)};
}

EngineOutcome EngineUpdater::Write(const engines::EngineVersion& version) {
  EngineOutcome outcome;
  const auto begin = Clock::now();
  const replica::PublishedVersion current = replicas_.current();
  const replica::PublishedVersion previous = replicas_.previous();
  std::optional<targets::TargetVersion> before;
  if (!previous.held.nothing())
    before = targets::TargetVersion{previous.held, previous.layout, replicas_.previous_data()};
  outcome.status =
      targets_.Prepare({current.held, current.layout, replicas_.current_data()}, before,
                       [this](const Held& from, const Held& to) { return replicas_.DeltasBetween(from, to); });
  outcome.prepare = Since(begin);
  if (!targets_.prepared()) {
    if (outcome.status.ok() && Behind({})) outcome.status = PausedAndResumed(version);
    return outcome;
  }
  const auto pause = Clock::now();
  const Status written = WritePaused(version, Describe(before ? previous : current, "resumed"));
  outcome.pause = Since(pause);
  if (outcome.status.ok()) outcome.status = written;
  for (const targets::EngineReport& engine : targets_.Describe()) outcome.written_bytes += engine.last_written_bytes;
  return outcome;
}

Result<bool> EngineUpdater::StillServes(const Held& served) {
  for (const replica::PublishedVersion& version : {replicas_.current(), replicas_.previous()}) {
    if (!served.nothing() && version.held == served) return driver_->StillServes(Describe(version, "check"));
  }
  return true;
}

Status EngineUpdater::Verify() {
  const replica::PublishedVersion current = replicas_.current();
  if (current.held.nothing()) return OkStatus();
  return targets_.Verify({current.held, current.layout, replicas_.current_data()});
}

// Memory is whole, and the server may stand still all the same: a receiver ended, or failed, between the two.
Status EngineUpdater::PausedAndResumed(const engines::EngineVersion& version) {
  LS_RETURN_IF_ERROR(driver_->Pause(version));
  return Resume(version);
}

// The pause. A server resumes only when all ranks of all engines are there, and at one version; it stays paused else,
// until Serve is tried again.
Status EngineUpdater::WritePaused(const engines::EngineVersion& version, const engines::EngineVersion& before) {
  owes_resume_ = OverHttp();
  if (const Status paused = driver_->Pause(version); !paused.ok()) {
    targets_.Abandon();
    return paused;
  }
  const Status written = targets_.Commit();
  if (targets_.AllAt(version.held)) {
    const Status resumed = Resume(version);
    return written.ok() ? resumed : written;
  }
  const Status resumed = targets_.AllAt(before.held) ? Resume(before) : OkStatus();
  if (!written.ok()) return resumed.ok() || !OverHttp() ? written : resumed;
  return {ErrorCode::kState, Cat("not every engine is at version ", version.held.version, " yet")};
}

Status EngineUpdater::Resume(const engines::EngineVersion& serving) {
  LS_RETURN_IF_ERROR(driver_->Resume(serving));
  owes_resume_ = false;
  return OkStatus();
}

}  // namespace lockstep::session
