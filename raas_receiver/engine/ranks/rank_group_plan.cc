// Where the model lies in the memory of a group's ranks, and what is in that memory.
#include <algorithm>
#include <utility>

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "raas_receiver/engine/ranks/rank_group.h"

namespace lockstep::engine {
namespace {

// Whether the rank's memory is `version`: every byte that the plan has of it, and its zeros.
Result<bool> HoldsVersion(const PlacementPlan& plan, RankConnection& rank, const VersionData& version,
                          uint64_t batch_bytes) {
  bool equal = true;
  const auto compare = [&](const os::UniqueFd& batch) -> Status {
    LS_ASSIGN_OR_RETURN(equal, rank.Compare(batch));
    return equal ? OkStatus() : Status(ErrorCode::kAborted, "they differ");
  };
  BatchWriter writer(version.data, compare, batch_bytes);
  Status status = writer.Fill(plan[rank.place()]);
  if (status.ok()) status = writer.Flush();
  if (!equal) return false;
  LS_RETURN_IF_ERROR(status);
  return true;
}

}  // namespace

Status RankGroup::Plan(const CommitRequest& request, const model::ModelLayout& layout) {
  LS_RETURN_IF_ERROR(PlanFor(layout));
  LS_RETURN_IF_ERROR(Welcome());
  return CheckClaims(request);
}

// Ranks that were recorded for another layout are refused. Where the others do not fit the model or one another,
// newcomers are refused; without such, the model has changed, and all are.
Status RankGroup::PlanFor(const model::ModelLayout& layout) {
  if (plan_ && plan_changes_ == changes_ && plan_layout_ == layout.digest()) return OkStatus();
  LS_RETURN_IF_ERROR(RefuseOtherLayouts(layout));
  const Status compiled = Compile(layout);
  if (compiled.ok()) return compiled;
  const bool newcomers = std::ranges::any_of(ranks_, [](const auto& rank) { return rank->newcomer(); });
  for (size_t place = 0; place < world(); ++place) {
    if (!newcomers || ranks_[place]->newcomer()) Refuse(place, compiled);
  }
  return compiled;
}

// The plan of where the tensors of `layout` lie in the memory of the ranks, all of this receiver.
Status RankGroup::Compile(const model::ModelLayout& layout) {
  std::vector<RankDescription> described;
  for (const auto& rank : ranks_) described.push_back(rank->description());
  const Looked looked = world() == world_ ? Looked::kAll : Looked::kSome;
  LS_ASSIGN_OR_RETURN(std::vector<std::string> unused, UnusedTensors(layout, described, looked));
  LS_ASSIGN_OR_RETURN(plan_, CompilePlacement(layout, described, unused, looked));
  const auto digest = DigestOf(*plan_);
  report_.plan_digest.assign(digest.begin(), digest.end());
  plan_layout_ = layout.digest();
  plan_changes_ = changes_;
  if (looked == Looked::kAll) SetUnused(std::move(unused));
  return OkStatus();
}

Status RankGroup::RefuseOtherLayouts(const model::ModelLayout& layout) {
  Status first;
  for (const auto& rank : present()) {
    if (rank->IsFor(layout)) continue;
    const Status why = rank->ForAnotherLayout();
    Refuse(rank->place(), why);
    if (first.ok()) first = why;
  }
  return first;
}

void RankGroup::SetUnused(std::vector<std::string> unused) {
  if (unused == report_.unused) return;
  report_.unused = std::move(unused);
  if (report_.unused.empty()) return;
  telemetry::Log(
      telemetry::LogLevel::kInfo, "engine_tensors_unused",
      {{"model", options_.model}, {"engine", name_}, {"tensors", report_.unused.size()}, {"first", report_.unused[0]}});
}

// Believes what ranks claim to hold, where it is one of the two versions and every byte is that.
Status RankGroup::CheckClaims(const CommitRequest& request) {
  for (const auto& rank : ranks_) {
    const auto claims = [&](const VersionData& version) {
      return rank->claim() == version.held && version.layout->digest() == plan_layout_;
    };
    if (rank->claim().nothing()) continue;
    const VersionData* claimed = nullptr;
    if (claims(request.version)) claimed = &request.version;
    if (request.before && claims(*request.before)) claimed = &*request.before;
    bool equal = false;
    if (claimed != nullptr) {
      LS_ASSIGN_OR_RETURN(equal, HoldsVersion(*plan_, *rank, *claimed, options_.batch_bytes));
    }
    rank->SetHolds(equal ? claimed->held : VersionRef());
  }
  return OkStatus();
}

Status RankGroup::Verify(const VersionData& version) {
  if (!complete()) {
    return {ErrorCode::kState,
            Cat("engine ", name_, ": only ", attached(), " of its ", world(), " ranks are attached")};
  }
  if (!awake()) return {ErrorCode::kState, Cat("engine ", name_, " is asleep: its weights are not there")};
  if (!options_.compare_only && !At(version.held)) {
    return {ErrorCode::kState, Cat("engine ", name_, " does not serve version ", version.held.version)};
  }
  LS_RETURN_IF_ERROR(PlanFor(*version.layout));
  LS_RETURN_IF_ERROR(Welcome());
  Status first;
  for (const auto& rank : ranks_) {
    const Result<bool> equal = HoldsVersion(*plan_, *rank, version, options_.batch_bytes);
    if (!equal.ok()) return equal.status().WithContext(Cat("engine ", name_));
    if (*equal) continue;
    rank->SetHolds({});  // the next Prepare writes all of it
    if (first.ok())
      first = {ErrorCode::kCorrupt, Cat(rank->Label(), " has other parameters than version ", version.held.version)};
  }
  return first;
}

void RankGroup::Doubt() {
  commit_.reset();
  for (const auto& rank : present()) rank->Doubt();
}

}  // namespace lockstep::engine
