#include "trainer_agent/serve/pull_table.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>

#include "common/base/text.h"
#include "common/telemetry/log.h"

namespace lockstep::serve {
namespace {

constexpr size_t kMaxOutcome = 1024;

// Not guessable, so that no peer closes or renews the pull of another by counting.
uint64_t RandomPullId() {
  const auto bytes = RandomBytes16();
  uint64_t id = 0;
  std::memcpy(&id, bytes.data(), sizeof id);
  return std::max<uint64_t>(id, 1);
}

// From what the receiver holds to `newest`. The delta of a version is there shortly before the version is, if it ever
// is: it is not promised.
run::DeltaStore::Chain RouteFor(const PullRequest& request, run::ServedRun& run, Version newest) {
  if (request.force_full || request.held.nothing() || request.held.run != run.run()) return {};
  run::DeltaStore::Chain steps = run.deltas().RouteFrom(request.held.version, newest, run.layout().data_bytes());
  // Steps from a version fit only its bytes: a receiver that has other bytes under its number gets none.
  const auto first = steps.empty() ? nullptr : steps.front()->payload();
  if (first == nullptr || first->header().base_digest != request.held_digest) return {};
  return steps;
}

Status NotOpen(uint64_t pull_id) {
  return {ErrorCode::kNotFound, Cat("pull ", pull_id, " is not open; it may have expired")};
}

void LogEnd(std::string_view event, const Pull& pull, const std::string& outcome) {
  telemetry::Log(telemetry::LogLevel::kDebug, event,
                 {{"model", pull.run->model()},
                  {"receiver", pull.receiver},
                  {"pull", pull.id},
                  {"standing", pull.standing()},
                  {"outcome", CleanText(outcome, kMaxOutcome)}});
}

}  // namespace

void PullTable::Expire(Pull::Clock::time_point now) {
  // They go after the table's lock: the end of a pull, and of what it kept, may wait for a store.
  std::vector<std::shared_ptr<Pull>> ended;
  std::vector<std::shared_ptr<Pull>> expired;
  std::vector<std::shared_ptr<const void>> kept;
  std::set<std::shared_ptr<run::ServedRun>> runs;
  {
    MutexLock lock(mutex_);
    for (auto at = pulls_.begin(); at != pulls_.end();) {
      const std::shared_ptr<Pull> pull = at->second;
      runs.insert(pull->run);
      const bool over = pull->Expired(now - limits_.idle_timeout);
      if (over || pull->revoked()) {
        (pull->closed() ? ended : expired).push_back(pull);
        kept.push_back(pull->Close());
      }
      at = over || (pull->closed() && !pull->standing()) ? pulls_.erase(at) : std::next(at);
    }
  }
  for (const auto& pull : expired) {
    LogEnd("pull_expired", *pull, pull->revoked() ? "its owner may no longer have the model" : "");
  }
  for (const auto& run : runs) run->deltas().TakeBack(now);
}

size_t PullTable::ActivePulls(std::chrono::milliseconds recent) const {
  MutexLock lock(mutex_);
  const auto since = Pull::Clock::now() - recent;
  return static_cast<size_t>(
      std::count_if(pulls_.begin(), pulls_.end(), [&](const auto& item) { return item.second->TouchedSince(since); }));
}

Result<std::shared_ptr<run::ServedRun>> PullTable::FindRun(const PullRequest& request) const {
  LS_RETURN_IF_ERROR(CheckReceiverName(request.receiver));
  LS_ASSIGN_OR_RETURN(auto run, catalog_->FindOpen(request.model));
  if (request.layout == run->layout().digest()) return run;
  return Status(ErrorCode::kState, Cat("model ", request.model, ": the receiver's layout ", ToHex(request.layout),
                                       " is not ", ToHex(run->layout().digest()), "; fetch the layout again"));
}

Status PullTable::Insert(const std::shared_ptr<Pull>& pull) {
  Expire();
  MutexLock lock(mutex_);
  const std::string_view kind = pull->standing() ? " standing pulls" : " pulls";
  size_t alike = 0;
  size_t own = 0;
  for (const auto& [id, other] : pulls_) {
    if (other->standing() != pull->standing()) continue;
    ++alike;
    if (other->owner == pull->owner) ++own;
  }
  if (alike >= limits_.max_pulls) {
    return {ErrorCode::kResourceExhausted,
            Cat(alike, kind, " are open, the limit; try again later or raise --max-pulls")};
  }
  if (!pull->owner.empty() && own >= std::max<size_t>(1, limits_.max_pulls / 4)) {
    return {ErrorCode::kResourceExhausted,
            Cat(own, kind, " of ", pull->owner, " are open, a quarter of --max-pulls; close some, or raise it")};
  }
  pulls_[pull->id] = pull;
  return OkStatus();
}

std::vector<Ticket> PullTable::IssueTickets(Pull& pull, uint32_t lanes) const {
  return pull.IssueTickets(std::clamp<uint32_t>(lanes, 1, limits_.max_lanes), 2 * limits_.max_lanes);
}

Status PullTable::AddSteps(Pull& pull, const run::DeltaStore::Chain& deltas, PullPlan& plan) {
  MutexLock lock(mutex_);
  for (const auto& delta : deltas) {
    auto payload = delta->payload();
    if (payload == nullptr) return {ErrorCode::kState, "a delta on the way is no longer retained; pull again"};
    const uint64_t id = next_payload_id_++;
    pull.AddDelta(id, delta);
    plan.payload_bytes += payload->header().data_bytes;
    plan.steps.push_back({id, std::move(payload)});
  }
  if (plan.steps.empty()) return OkStatus();
  const payload::PayloadHeader& last = plan.steps.back().payload->header();
  plan.target = plan.steps.back().payload->target();
  plan.target_digest = last.target_digest;
  plan.committed_unix_ns = last.committed_unix_ns;
  plan.label = pull.run->LabelOf(plan.target.version);
  return OkStatus();
}

Result<PullPlan> PullTable::Open(const PullRequest& request) {
  LS_ASSIGN_OR_RETURN(const auto run, FindRun(request));
  if (request.standing) return OpenStanding(request, run);
  LS_ASSIGN_OR_RETURN(const run::ServedVersion newest, run->RequireNewest());
  reports_.OfPull({request.model, request.receiver, request.owner, ""}, request.held, "");
  PullPlan plan{.base = request.held,
                .target = newest.manifest->held,
                .target_digest = newest.manifest->digest,
                .committed_unix_ns = newest.committed_unix_ns,
                .label = newest.label};
  if (request.held == plan.target && request.held_digest == plan.target_digest && !request.force_full) return plan;

  const run::DeltaStore::Chain steps = RouteFor(request, *run, plan.target.version);
  const auto pull =
      std::make_shared<Pull>(RandomPullId(), request.receiver, request.owner, run, plan.target.version,
                             steps.empty() ? run->deltas().PinFrom(plan.target.version) : nullptr, request.allowed);
  LS_RETURN_IF_ERROR(AddSteps(*pull, steps, plan));
  LS_RETURN_IF_ERROR(Insert(pull));
  plan.pull_id = pull->id;
  plan.tickets = IssueTickets(*pull, request.lanes);
  plan.local_ticket = IssueTickets(*pull, 1)[0];
  if (steps.empty()) {
    plan.mode = v1::PULL_MODE_FULL;
    plan.base = {};
    plan.payload_bytes = run->layout().data_bytes();
    return plan;
  }
  plan.mode = steps.size() > 1 ? v1::PULL_MODE_CHAIN : v1::PULL_MODE_DELTA;
  return plan;
}

Result<PullPlan> PullTable::OpenStanding(const PullRequest& request, const std::shared_ptr<run::ServedRun>& run) {
  const auto pull = std::make_shared<Pull>(RandomPullId(), request.receiver, request.owner, run, 0,
                                           run->feed().Follow(), request.allowed);
  LS_RETURN_IF_ERROR(Insert(pull));
  return PullPlan{.pull_id = pull->id, .mode = v1::PULL_MODE_STANDING, .tickets = IssueTickets(*pull, request.lanes)};
}

Result<std::shared_ptr<Pull>> PullTable::Find(uint64_t pull_id) const {
  MutexLock lock(mutex_);
  const auto at = pulls_.find(pull_id);
  if (at == pulls_.end() || at->second->closed()) return NotOpen(pull_id);
  return at->second;
}

Result<std::shared_ptr<Pull>> PullTable::FindOwn(uint64_t pull_id, const std::string& owner) const {
  LS_ASSIGN_OR_RETURN(auto pull, Find(pull_id));
  if (pull->owner != owner) return NotOpen(pull_id);
  return pull;
}

Result<std::shared_ptr<Pull>> PullTable::FindAndTouch(uint64_t pull_id, const std::string& owner) const {
  LS_ASSIGN_OR_RETURN(auto pull, FindOwn(pull_id, owner));
  pull->Touch();
  return pull;
}

Result<std::shared_ptr<run::ServedRun>> PullTable::RunOf(uint64_t pull_id, const std::string& owner) const {
  LS_ASSIGN_OR_RETURN(const auto pull, FindOwn(pull_id, owner));
  return pull->run;
}

Result<PullPlan> PullTable::CatchUp(uint64_t pull_id, Version oldest, const std::string& owner) {
  LS_ASSIGN_OR_RETURN(const auto pull, FindAndTouch(pull_id, owner));
  pull->DropDeltas();  // what an earlier catch-up promised
  LS_ASSIGN_OR_RETURN(const run::ServedVersion newest, pull->run->RequireNewest());
  run::DeltaStore::Chain chain;
  if (oldest != newest.manifest->held.version) {
    LS_ASSIGN_OR_RETURN(chain, pull->run->deltas().ChainFrom(oldest, newest.manifest->held.version));
  }
  PullPlan plan{.pull_id = pull_id,
                .mode = v1::PULL_MODE_CHAIN,
                .base = {pull->run->run(), oldest},
                .target = newest.manifest->held,
                .target_digest = newest.manifest->digest,
                .committed_unix_ns = newest.committed_unix_ns,
                .label = newest.label};
  LS_RETURN_IF_ERROR(AddSteps(*pull, chain, plan));
  return plan;
}

Result<std::vector<Ticket>> PullTable::RenewTickets(uint64_t pull_id, uint32_t lanes, const std::string& owner) {
  LS_ASSIGN_OR_RETURN(const auto pull, FindAndTouch(pull_id, owner));
  return IssueTickets(*pull, lanes);
}

std::string PullTable::Close(uint64_t pull_id, const VersionRef& held, const std::string& outcome,
                             const std::string& owner) {
  std::shared_ptr<Pull> pull;
  std::shared_ptr<const void> kept;  // goes after the table's lock
  {
    MutexLock lock(mutex_);
    const auto at = pulls_.find(pull_id);
    if (at == pulls_.end() || at->second->owner != owner) return "";
    pull = at->second;
    kept = pull->Close();
    // The lanes of a standing pull may be slow to end, and count until they have.
    if (!pull->standing() || !pull->has_lanes()) pulls_.erase(at);
  }
  LogEnd("pull_closed", *pull, outcome);
  if (pull->standing()) return pull->run->model();
  reports_.OfPull({pull->run->model(), pull->receiver, pull->owner, ""}, held, outcome);
  return pull->run->model();
}

std::optional<Ticket> PullTable::FindTicket(const wire::LaneIdentity& identity) const {
  const auto pull = Find(identity.pull_id);
  return pull.ok() ? (*pull)->FindTicket(identity.ticket) : std::nullopt;
}

Result<Pull::LaneLease> PullTable::Admit(uint64_t pull_id, const Ticket& ticket) {
  const auto pull = Find(pull_id);  // any holder of its ticket may come
  if (!pull.ok() || !(*pull)->UseTicket(ticket)) {
    return Status(ErrorCode::kPermission, "the lane's ticket is unknown, used up or expired; ask for a new one");
  }
  (*pull)->Touch();
  return Pull::AddLane(*pull, 2 * limits_.max_lanes);
}

size_t PullTable::open_pulls(const std::string& model) const {
  MutexLock lock(mutex_);
  return static_cast<size_t>(std::count_if(pulls_.begin(), pulls_.end(), [&](const auto& item) {
    return item.second->run->model() == model && !item.second->standing();
  }));
}

}  // namespace lockstep::serve
