#include "raas_receiver/targets/engine_group.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "common/telemetry/log_limit.h"

namespace lockstep::targets {
namespace {

using Clock = std::chrono::steady_clock;

std::chrono::microseconds Since(Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin);
}

bool IsFor(const RankConnection& rank, const model::ModelLayout& layout) {
  return rank.description().layout.value_or(layout.digest()) == layout.digest();
}

Status ForAnotherLayout(const RankConnection& rank) {
  return {ErrorCode::kState, Cat(rank.Label(), " was recorded for another layout of the model; it asks for the ",
                                 "present one and records again")};
}

}  // namespace

EngineGroup::EngineGroup(const EngineTargetsOptions& options, const RankConnection& first)
    : options_(options), members_(options.model, first) {}

Status EngineGroup::Join(std::shared_ptr<RankConnection> rank, const model::ModelLayout& layout) {
  if (!IsFor(*rank, layout)) return ForAnotherLayout(*rank);
  LS_RETURN_IF_ERROR(members_.MakeRoom(*rank));
  members_.Join(std::move(rank));
  return OkStatus();
}

bool EngineGroup::At(const VersionRef& held) const {
  const EngineRanks ranks = members_.ranks();
  return !held.nothing() && members_.complete() && std::all_of(ranks.begin(), ranks.end(), [&](const auto& rank) {
    return rank->reads() == held && rank->holds() == held;
  });
}

bool EngineGroup::awake() const {
  const std::vector<std::shared_ptr<RankConnection>> ranks = members_.present();
  return members_.complete() &&
         std::none_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank->asleep(); });
}

EngineReport EngineGroup::Describe() const {
  EngineReport report = report_;
  const std::vector<std::shared_ptr<RankConnection>> ranks = members_.present();
  report.engine = members_.engine();
  report.world = static_cast<uint32_t>(members_.world());
  report.attached = static_cast<uint32_t>(ranks.size());
  for (const auto& rank : ranks) {
    report.reads.push_back(rank->reads());
    if (rank->asleep()) {
      ++report.asleep;
    } else if (rank->compares()) {
      ++report.comparing;
    } else if (rank->reads().nothing()) {
      ++report.waiting;
    }
    report.parameters += rank->description().parameters.size();
    for (const uint64_t bytes : rank->description().memories) report.target_bytes += bytes;
  }
  const bool all = std::none_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank->gone(); });
  if (all && At(report.serving())) report.at = report.serving();
  return report;
}

// --- commits ---

Status EngineGroup::Failed(Status status) {
  status = status.WithContext(Cat("engine ", members_.engine()));
  ++report_.failures;
  report_.last_error = status.message();
  static telemetry::LogLimit reasons;  // of what is tried again and again
  const uint64_t times = reasons.Count(Cat(options_.model, ": ", status.message()));
  if (times == 0) return status;
  telemetry::LogError("engine_commit_failed", status,
                      {{"model", options_.model}, {"engine", members_.engine()}, {"times", times}});
  return status;
}

Status EngineGroup::Prepare(const CommitRequest& request) {
  commit_.reset();
  if (!awake()) return OkStatus();
  const auto begin = Clock::now();
  const Status status = TryPrepare(request);
  report_.last_prepare = Since(begin);
  if (status.ok() && commit_ == nullptr) report_.last_error.clear();  // all ranks have the version
  if (status.ok()) return status;
  (void)members_.DropGone();  // a rank that did not do what it was told has no connection any more
  return Failed(status);
}

Status EngineGroup::TryPrepare(const CommitRequest& request) {
  if (SomeWait(request)) LS_RETURN_IF_ERROR(CatchUp(request));
  LS_RETURN_IF_ERROR(Plan(request, *request.version.layout));
  if (At(request.version.held)) return OkStatus();
  auto commit = std::make_unique<GroupCommit>(members_, request.version, request.deltas, plan_, options_);
  LS_RETURN_IF_ERROR(commit->Prepare());
  commit_ = std::move(commit);
  return OkStatus();
}

// Whether some ranks read the version before, and others wait and may be written as they are: a commit was aborted, or
// a receiver died in it, when they had been written.
bool EngineGroup::SomeWait(const CommitRequest& request) const {
  bool read = false;
  bool wait = false;
  for (const auto& rank : members_.ranks()) {
    if (rank->reads().nothing() && !rank->gated()) return false;  // its server may run
    if (request.before && !IsFor(*rank, *request.before->layout)) return false;
    wait = wait || rank->reads().nothing();
    read = read || (request.before && rank->reads() == request.before->held);
  }
  return read && wait;
}

// Those that wait are brought to what the others read. In a collective the others may stand still for them, and could
// not be held.
Status EngineGroup::CatchUp(const CommitRequest& request) {
  LS_RETURN_IF_ERROR(Plan(request, *request.before->layout));
  GroupCommit commit(members_, *request.before, request.deltas, plan_, options_);
  LS_RETURN_IF_ERROR(commit.Prepare());
  LS_RETURN_IF_ERROR(commit.Run());
  telemetry::Log(telemetry::LogLevel::kInfo, "engine_caught_up",
                 {{"model", options_.model}, {"engine", members_.engine()}, {"version", commit.version().version}});
  return OkStatus();
}

Status EngineGroup::Commit() {
  const std::unique_ptr<GroupCommit> commit = std::move(commit_);
  const auto begin = Clock::now();
  if (const Status status = commit->Run(); !status.ok()) return Failed(status);
  report_.last_pause = Since(begin);
  report_.last_written_bytes = commit->written_bytes();
  report_.last_error.clear();
  ++report_.commits;
  telemetry::Log(telemetry::LogLevel::kInfo, "engine_committed",
                 {{"model", options_.model},
                  {"engine", members_.engine()},
                  {"run", ToHex(commit->version().run)},
                  {"version", commit->version().version},
                  {"ranks", members_.attached()},
                  {"written_bytes", report_.last_written_bytes},
                  {"pause_s", std::chrono::duration<double>(report_.last_pause).count()}});
  return OkStatus();
}

// --- the plan, and what ranks hold ---

Status EngineGroup::Plan(const CommitRequest& request, const model::ModelLayout& layout) {
  LS_RETURN_IF_ERROR(PlanFor(layout));
  LS_RETURN_IF_ERROR(members_.Welcome());
  return CheckClaims(request);
}

// Ranks that were recorded for another layout are refused. Where the others do not fit the model or one another,
// newcomers are refused; without such, the model has changed, and all are.
Status EngineGroup::PlanFor(const model::ModelLayout& layout) {
  if (plan_ && plan_members_ == members_.changes() && plan_layout_ == layout.digest()) return OkStatus();
  LS_RETURN_IF_ERROR(RefuseOtherLayouts(layout));
  Result<CompiledPlan> plan = CompilePlan(layout, members_.ranks());
  if (plan.ok()) {
    plan_ = std::move(plan->placement);
    plan_layout_ = layout.digest();
    plan_members_ = members_.changes();
    SetUnused(std::move(plan->unused));
    return OkStatus();
  }
  bool newcomers = false;
  for (size_t rank = 0; rank < members_.world(); ++rank) newcomers = newcomers || members_.newcomer(rank);
  for (size_t rank = 0; rank < members_.world(); ++rank) {
    if (!newcomers || members_.newcomer(rank)) members_.Refuse(rank, plan.status());
  }
  return plan.status();
}

Status EngineGroup::RefuseOtherLayouts(const model::ModelLayout& layout) {
  Status first;
  for (const auto& rank : members_.present()) {
    if (IsFor(*rank, layout)) continue;
    const Status why = ForAnotherLayout(*rank);
    members_.Refuse(rank->rank(), why);
    if (first.ok()) first = why;
  }
  return first;
}

void EngineGroup::SetUnused(std::vector<std::string> unused) {
  if (unused == report_.unused) return;
  report_.unused = std::move(unused);
  if (report_.unused.empty()) return;
  telemetry::Log(telemetry::LogLevel::kInfo, "engine_tensors_unused",
                 {{"model", options_.model},
                  {"engine", members_.engine()},
                  {"tensors", report_.unused.size()},
                  {"first", report_.unused[0]}});
}

// Believes what ranks claim to hold, where it is one of the two versions and every byte is that.
Status EngineGroup::CheckClaims(const CommitRequest& request) {
  for (const auto& rank : members_.ranks()) {
    const auto claims = [&](const TargetVersion& version) {
      return rank->claim() == version.held && version.layout->digest() == plan_layout_;
    };
    const TargetVersion* claimed = nullptr;
    if (claims(request.version)) claimed = &request.version;
    if (request.before && claims(*request.before)) claimed = &*request.before;
    if (claimed != nullptr) {
      LS_ASSIGN_OR_RETURN(const bool equal, HoldsVersion(*plan_, *rank, *claimed, options_.batch_bytes));
      if (equal) rank->SetHolds(claimed->held);
    }
    rank->ForgetClaim();
  }
  return OkStatus();
}

Status EngineGroup::Verify(const TargetVersion& version) {
  if (!members_.complete()) {
    return {ErrorCode::kState, Cat("engine ", members_.engine(), ": only ", members_.attached(), " of its ",
                                   members_.world(), " ranks are attached")};
  }
  if (!awake()) return {ErrorCode::kState, Cat("engine ", members_.engine(), " is asleep: its weights are not there")};
  if (!options_.compare_only && !At(version.held)) {
    return {ErrorCode::kState, Cat("engine ", members_.engine(), " does not serve version ", version.held.version)};
  }
  LS_RETURN_IF_ERROR(PlanFor(*version.layout));
  LS_RETURN_IF_ERROR(members_.Welcome());
  Status first;
  for (const auto& rank : members_.ranks()) {
    const Result<bool> equal = HoldsVersion(*plan_, *rank, version, options_.batch_bytes);
    if (!equal.ok()) return equal.status().WithContext(Cat("engine ", members_.engine()));
    if (*equal) continue;
    rank->SetHolds({});  // the next Prepare writes all of it
    if (first.ok())
      first = {ErrorCode::kCorrupt, Cat(rank->Label(), " has other parameters than version ", version.held.version)};
  }
  return first;
}

void EngineGroup::Doubt() {
  for (const auto& rank : members_.present()) rank->Doubt();
}

}  // namespace lockstep::targets
