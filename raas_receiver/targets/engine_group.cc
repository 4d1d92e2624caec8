#include "raas_receiver/targets/engine_group.h"

#include <algorithm>

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "raas_receiver/placement/rules/rules.h"

namespace lockstep {

EngineGroup::EngineGroup(const EngineTargetsOptions& options, const RankLink& first, WorkerPool& pool)
    : options_(options),
      pool_(pool),
      engine_(first.engine()),
      halves_(first.halves()),
      ranks_(first.description().world),
      planned_(ranks_.size()),
      paged_(ranks_.size()) {}

size_t EngineGroup::attached() const {
  return static_cast<size_t>(std::count_if(ranks_.begin(), ranks_.end(), [](const auto& link) { return link; }));
}

std::vector<std::shared_ptr<RankLink>> EngineGroup::links() const {
  std::vector<std::shared_ptr<RankLink>> links;
  std::copy_if(ranks_.begin(), ranks_.end(), std::back_inserter(links), [](const auto& link) { return link; });
  return links;
}

bool EngineGroup::At(const Held& held) const {
  if (!complete() || !page_ || page_->serving() != held) return false;
  return std::all_of(ranks_.begin(), ranks_.end(), [&](const auto& link) {
    return link->serving() == held && link->half() == page_->half() && link->holds(link->half()) == held;
  });
}

EngineReport EngineGroup::Describe() const {
  EngineReport report = report_;
  report.engine = engine_;
  report.world = static_cast<uint32_t>(ranks_.size());
  report.attached = static_cast<uint32_t>(attached());
  if (page_) report.serving = page_->serving();
  report.mixed = page_ && page_->state() == EngineState::kWriting;
  for (const auto& link : links()) {
    report.parameters += link->description().parameters.size();
    for (const MemoryDescription& memory : link->description().halves.front()) report.target_bytes += memory.bytes;
  }
  return report;
}

// --- membership ---

Status EngineGroup::CheckPlace(const RankLink& link) {
  const RankDescription& said = link.description();
  if (said.world != ranks_.size() || link.halves() != halves_) {
    return {ErrorCode::kBadData, Cat(link.Label(), " says ", said.world, " ranks of ", link.halves(),
                                     " halves, the others of its engine ", ranks_.size(), " of ", halves_)};
  }
  const std::shared_ptr<RankLink>& taken = ranks_[said.rank];
  if (!taken) return OkStatus();
  if (!taken->gone()) {
    return {ErrorCode::kState, Cat(link.Label(), ": process ", taken->pid(), " has that place; end it first")};
  }
  Drop(said.rank, {ErrorCode::kUnavailable, "its connection ended"});
  return OkStatus();
}

Status EngineGroup::Join(std::shared_ptr<RankLink> link, const ModelLayout& layout) {
  LS_RETURN_IF_ERROR(CheckPlace(*link));
  RankDescription completed = link->description();
  LS_RETURN_IF_ERROR(CompleteDescription(layout, completed).status().WithContext(link->Label()));
  const uint32_t rank = link->rank();
  ranks_[rank] = std::move(link);
  planned_[rank] = false;
  paged_[rank] = false;
  plan_ = nullptr;
  Log(LogLevel::kInfo, "engine_attached",
      {{"model", options_.model},
       {"engine", engine_},
       {"rank", rank},
       {"world", ranks_.size()},
       {"pid", ranks_[rank]->pid()},
       {"version", ranks_[rank]->serving().version}});
  return OkStatus();
}

// Answers ATTACHED to the ranks that have not had it. Where a rank that has the page was lost, all get another that
// says the same: the lost one may still look at its own.
Status EngineGroup::SendPage() {
  if (!page_ || page_stale_) {
    LS_ASSIGN_OR_RETURN(ControlPage page, ControlPage::Create(static_cast<uint32_t>(ranks_.size())));
    if (page_ && page_->state() == EngineState::kServing) page.Serve(page_->serving(), page_->half());
    if (page_ && page_->state() == EngineState::kWriting) page.BeginWriting();
    page_.emplace(std::move(page));
    page_stale_ = false;
    paged_.assign(ranks_.size(), false);
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (paged_[rank]) continue;
    paged_[rank] = true;
    const Status sent = ranks_[rank]->SendAttached(page_->fd());
    if (sent.ok()) continue;
    Drop(rank, sent);
    return sent;
  }
  return OkStatus();
}

void EngineGroup::Drop(size_t rank, const Status& why) {
  LogWarn("engine_lost", why,
          {{"model", options_.model}, {"engine", engine_}, {"rank", rank}, {"pid", ranks_[rank]->pid()}});
  ranks_[rank]->HangUp();
  Forget(rank);
}

void EngineGroup::Refuse(size_t rank, const Status& why) {
  LogWarn("engine_refused", why, {{"model", options_.model}, {"engine", engine_}, {"rank", rank}});
  ranks_[rank]->SendRefused(why);
  Forget(rank);
}

void EngineGroup::Forget(size_t rank) {
  ranks_[rank] = nullptr;
  page_stale_ = page_stale_ || paged_[rank];
  plan_ = nullptr;
}

bool EngineGroup::DropGone() {
  bool any = false;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank] || !ranks_[rank]->gone()) continue;
    Drop(rank, {ErrorCode::kUnavailable, "its connection ended"});
    any = true;
  }
  return any;
}

// --- plans and what ranks hold ---

Result<EngineGroup::Plan> EngineGroup::CompilePlan(const ModelLayout& layout, EngineRanks ranks) const {
  std::vector<RankDescription> completed;
  for (const auto& link : ranks) completed.push_back(link->description());
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> unused, CompleteDescriptions(layout, completed));
  return PlacementPlan::Compile(layout, completed, unused);
}

// Where the ranks do not fit the model or one another, those that came last are refused; without such, the model has
// changed, and all are.
Status EngineGroup::CompileFor(const ModelLayout& layout) {
  if (plan_ && layout_ == layout.digest()) return OkStatus();
  Result<Plan> plan = CompilePlan(layout, ranks_);
  if (plan.ok()) {
    plan_ = *std::move(plan);
    layout_ = layout.digest();
    planned_.assign(ranks_.size(), true);
    return OkStatus();
  }
  const std::vector<bool> planned = planned_;
  const bool newcomers = std::find(planned.begin(), planned.end(), false) != planned.end();
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!newcomers || !planned[rank]) Refuse(rank, plan.status());
  }
  return plan.status();
}

Status EngineGroup::CheckClaims(const TargetVersion& version, const std::optional<TargetVersion>& before) {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    RankLink& link = *ranks_[rank];
    if (!link.claims()) continue;
    const TargetVersion* said = nullptr;
    if (link.serving() == version.held) said = &version;
    if (before && link.serving() == before->held && before->layout->digest() == layout_) said = &*before;
    if (said != nullptr) {
      LS_ASSIGN_OR_RETURN(const bool equal,
                          HalfEquals(*plan_, link, static_cast<uint32_t>(rank), link.half(), *said, pool_));
      if (equal) link.SetHolds(link.half(), said->held);
    }
    link.ForgetClaim();
  }
  return OkStatus();
}

// Ranks that have outlived their receiver, all at one version: it is what they serve.
void EngineGroup::Adopt() {
  const RankLink& first = *ranks_.front();
  if (page_->state() != EngineState::kEmpty || first.serving().nothing()) return;
  for (const auto& link : ranks_) {
    if (link->serving() != first.serving() || link->half() != first.half()) return;
    if (link->holds(link->half()) != link->serving()) return;
  }
  page_->Serve(first.serving(), first.half());
  Log(LogLevel::kInfo, "engine_adopted",
      {{"model", options_.model},
       {"engine", engine_},
       {"run", ToHex(first.serving().run)},
       {"version", first.serving().version}});
}

Status EngineGroup::Verify(const TargetVersion& version) {
  if (!complete()) return OkStatus();
  if (!At(version.held)) {
    return {ErrorCode::kState, Cat("engine ", engine_, " does not serve version ", version.held.version)};
  }
  LS_RETURN_IF_ERROR(CompileFor(*version.layout));
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    LS_ASSIGN_OR_RETURN(const bool equal,
                        HalfEquals(*plan_, *ranks_[rank], static_cast<uint32_t>(rank), page_->half(), version, pool_));
    if (equal) continue;
    return {ErrorCode::kCorrupt,
            Cat(ranks_[rank]->Label(), " has other parameters than version ", version.held.version)};
  }
  return OkStatus();
}

}  // namespace lockstep
