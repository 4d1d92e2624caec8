#include "raas_receiver/targets/engine_group.h"

#include <algorithm>
#include <chrono>

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "raas_receiver/placement/rules/rules.h"

namespace lockstep::targets {
namespace {

using Clock = std::chrono::steady_clock;

std::chrono::microseconds Since(Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin);
}

}  // namespace

EngineGroup::EngineGroup(const EngineTargetsOptions& options, const RankLink& first, WorkerPool& pool)
    : options_(options), pool_(pool), members_(options.model, first) {}

Status EngineGroup::Join(std::shared_ptr<RankLink> link, const model::ModelLayout& layout) {
  LS_RETURN_IF_ERROR(members_.MakeRoom(*link));
  placement::RankDescription completed = link->description();
  LS_RETURN_IF_ERROR(placement::CompleteDescription(layout, completed).status().WithContext(link->Label()));
  members_.Join(std::move(link));
  return OkStatus();
}

bool EngineGroup::At(const Held& held) const {
  const ControlPage* const page = members_.page();
  if (!members_.complete() || page == nullptr || page->serving() != held) return false;
  const EngineRanks ranks = members_.ranks();
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](const auto& link) { return link->serving() == held && link->holds() == held; });
}

EngineReport EngineGroup::Describe() const {
  EngineReport report = report_;
  const std::vector<std::shared_ptr<RankLink>> links = members_.present();
  report.engine = members_.engine();
  report.world = static_cast<uint32_t>(members_.world());
  report.attached = static_cast<uint32_t>(links.size());
  if (const ControlPage* const page = members_.page()) {
    report.serving = page->serving();
    if (At(report.serving)) report.at = report.serving;
    report.mixed = page->state() == EngineState::kWriting;
  }
  for (const auto& link : links) {
    report.parameters += link->description().parameters.size();
    for (const uint64_t bytes : link->description().memories) report.target_bytes += bytes;
  }
  return report;
}

// --- commits ---

Status EngineGroup::Failed(Status status) {
  status = status.WithContext(Cat("engine ", members_.engine()));
  ++report_.failures;
  report_.last_error = status.message();
  telemetry::LogError("engine_commit_failed", status, {{"model", options_.model}, {"engine", members_.engine()}});
  return status;
}

Status EngineGroup::Prepare(const CommitRequest& request) {
  commit_.reset();
  if (!members_.complete()) return OkStatus();
  const auto begin = Clock::now();
  const Status status = TryPrepare(request);
  report_.last_prepare = Since(begin);
  if (status.ok()) return status;
  (void)members_.DropGone();  // a rank that did not do what it was told has no connection any more
  return Failed(status);
}

Status EngineGroup::TryPrepare(const CommitRequest& request) {
  LS_RETURN_IF_ERROR(PlanFor(*request.version.layout));
  LS_RETURN_IF_ERROR(members_.SendPage());
  LS_RETURN_IF_ERROR(CheckClaims(request.version, request.before));
  Readopt();
  if (At(request.version.held)) return OkStatus();
  auto commit = std::make_unique<GroupCommit>(members_, request, plan_, options_, pool_);
  LS_RETURN_IF_ERROR(commit->Prepare());
  commit_ = std::move(commit);
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

// Where the ranks do not fit the model or one another, newcomers are refused; without such, the model has changed, and
// all are.
Status EngineGroup::PlanFor(const model::ModelLayout& layout) {
  if (plan_ && plan_members_ == members_.changes() && plan_layout_ == layout.digest()) return OkStatus();
  Result<std::shared_ptr<const placement::PlacementPlan>> plan = CompilePlan(layout, members_.ranks());
  if (plan.ok()) {
    plan_ = *std::move(plan);
    plan_layout_ = layout.digest();
    plan_members_ = members_.changes();
    members_.Settle();
    return OkStatus();
  }
  bool newcomers = false;
  for (size_t rank = 0; rank < members_.world(); ++rank) newcomers = newcomers || members_.newcomer(rank);
  for (size_t rank = 0; rank < members_.world(); ++rank) {
    if (!newcomers || members_.newcomer(rank)) members_.Refuse(rank, plan.status());
  }
  return plan.status();
}

// Believes what ranks said that they hold, where it is one of the two versions and every byte is that.
Status EngineGroup::CheckClaims(const TargetVersion& version, const std::optional<TargetVersion>& before) {
  for (const auto& link : members_.ranks()) {
    if (!link->claims()) continue;
    const TargetVersion* claimed = nullptr;
    if (link->serving() == version.held) claimed = &version;
    if (before && link->serving() == before->held && before->layout->digest() == plan_layout_) claimed = &*before;
    if (claimed != nullptr) {
      LS_ASSIGN_OR_RETURN(const bool equal, HoldsVersion(*plan_, *link, *claimed));
      if (equal) link->SetHolds(claimed->held);
    }
    link->ForgetClaim();
  }
  return OkStatus();
}

// Ranks that have outlived their receiver, all at one version: it is what they serve.
void EngineGroup::Readopt() {
  ControlPage& page = *members_.page();
  const EngineRanks ranks = members_.ranks();
  const RankLink& first = *ranks.front();
  if (page.state() != EngineState::kEmpty || first.serving().nothing()) return;
  for (const auto& link : ranks) {
    if (link->serving() != first.serving() || link->holds() != link->serving()) return;
  }
  page.Serve(first.serving());
  telemetry::Log(telemetry::LogLevel::kInfo, "engine_rank_readopted",
                 {{"model", options_.model},
                  {"engine", members_.engine()},
                  {"run", ToHex(first.serving().run)},
                  {"version", first.serving().version}});
}

Status EngineGroup::Verify(const TargetVersion& version) {
  if (!members_.complete()) return OkStatus();
  if (!At(version.held)) {
    return {ErrorCode::kState, Cat("engine ", members_.engine(), " does not serve version ", version.held.version)};
  }
  LS_RETURN_IF_ERROR(PlanFor(*version.layout));
  for (const auto& link : members_.ranks()) {
    LS_ASSIGN_OR_RETURN(const bool equal, HoldsVersion(*plan_, *link, version));
    if (equal) continue;
    return {ErrorCode::kCorrupt, Cat(link->Label(), " has other parameters than version ", version.held.version)};
  }
  return OkStatus();
}

void EngineGroup::Distrust(const TargetVersion& version) {
  if (At(version.held) && Verify(version).ok()) return;
  for (const auto& link : members_.present()) link->SetHolds({});
}

}  // namespace lockstep::targets
