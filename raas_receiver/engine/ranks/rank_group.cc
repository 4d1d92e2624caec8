#include "raas_receiver/engine/ranks/rank_group.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>
#include <utility>

#include "common/base/backoff.h"
#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "common/telemetry/log_limit.h"

namespace lockstep::engine {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// For another receiver to hold a version that this one holds. Then the engine's thread looks whether it is to do
// something else, and comes again.
constexpr milliseconds kHeldPatience{1'000};
constexpr milliseconds kFirstLook{1};
constexpr milliseconds kLongestLook{20};

std::chrono::microseconds Since(Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin);
}

}  // namespace

void LogRefused(const std::string& model, const RankConnection& rank, const Status& why) {
  static telemetry::LogLimit reasons;
  const uint64_t times = reasons.Count(Cat(model, ": ", rank.Label(), ": ", why.message()));
  if (times == 0) return;
  telemetry::LogWarn(
      "engine_rank_refused", why,
      {{"model", model}, {"engine", rank.group()}, {"rank", rank.rank()}, {"pid", rank.pid()}, {"times", times}});
}

RankGroup::RankGroup(const EngineRanksOptions& options, const RankConnection& first)
    : options_(options),
      name_(first.group()),
      incarnation_(first.incarnation()),
      world_(first.description().world),
      here_(first.here()),
      ranks_(here_.size()) {}

Ranks RankGroup::present() const {
  Ranks ranks;
  std::copy_if(ranks_.begin(), ranks_.end(), std::back_inserter(ranks), [](const auto& rank) { return rank; });
  return ranks;
}

Status RankGroup::MakeRoom(const RankConnection& rank) {
  const RankDescription& described = rank.description();
  if (described.world != world_) {
    return {ErrorCode::kBadData,
            Cat(rank.Label(), " says ", described.world, " ranks, the others of its group ", world_)};
  }
  if (rank.here() != here_) {
    return {ErrorCode::kBadData, Cat(rank.Label(), " says that ", rank.here().size(),
                                     " ranks are on this host, the others of its group say others")};
  }
  if (rank.incarnation() != incarnation_ && attached() != 0) {
    return {ErrorCode::kState,
            Cat(rank.Label(), " was started with others than process ", present().front()->pid(),
                ", which is attached: end the processes of the earlier start, or give the ranks of one group one ",
                "incarnation")};
  }
  const std::shared_ptr<RankConnection>& taken = ranks_[rank.place()];
  if (!taken) return OkStatus();
  if (!taken->gone()) {
    return {ErrorCode::kState, Cat(rank.Label(), ": process ", taken->pid(), " has that place; end it first")};
  }
  Lose(rank.place(), /*left=*/true);
  return OkStatus();
}

Status RankGroup::Join(std::shared_ptr<RankConnection> rank, const model::ModelLayout& layout) {
  if (!rank->IsFor(layout)) return rank->ForAnotherLayout();
  LS_RETURN_IF_ERROR(MakeRoom(*rank));
  const size_t place = rank->place();
  telemetry::Log(telemetry::LogLevel::kInfo, "engine_rank_attached",
                 {{"model", options_.model},
                  {"engine", name_},
                  {"rank", rank->rank()},
                  {"world", world_},
                  {"pid", rank->pid()},
                  {"version", rank->claim().version}});
  ranks_[place] = std::move(rank);
  ++changes_;
  return OkStatus();
}

void RankGroup::Drop(size_t place, const Status& why) {
  const RankConnection& rank = *ranks_[place];
  telemetry::LogWarn("engine_rank_lost", why,
                     {{"model", options_.model}, {"engine", name_}, {"rank", rank.rank()}, {"pid", rank.pid()}});
  Lose(place, /*left=*/false);
}

void RankGroup::Lose(size_t place, bool left) {
  RankConnection& lost = *ranks_[place];
  lost_.push_back({name_, lost.rank(), lost.pid(), lost.goes_on_with(), left});
  lost.HangUp();
  Forget(place);
}

void RankGroup::Refuse(size_t place, const Status& why) {
  LogRefused(options_.model, *ranks_[place], why);
  ranks_[place]->SendRefused(why);
  Forget(place);
}

void RankGroup::Forget(size_t place) {
  ranks_[place] = nullptr;
  ++changes_;
  report_.apart.reset();
}

bool RankGroup::DropGone() {
  const uint64_t before = changes_;
  for (size_t place = 0; place < ranks_.size(); ++place) {
    if (ranks_[place] && ranks_[place]->gone()) Lose(place, /*left=*/true);
  }
  return changes_ != before;
}

bool RankGroup::At(const VersionRef& held) const {
  return !held.nothing() && complete() &&
         std::ranges::all_of(ranks_, [&](const auto& rank) { return rank->reads() == held && rank->holds() == held; });
}

bool RankGroup::awake() const {
  return complete() && std::ranges::none_of(ranks_, [](const auto& rank) { return rank->asleep(); });
}

RankGroupReport RankGroup::Describe() const {
  RankGroupReport report = report_;
  const Ranks ranks = present();
  report.name = name_;
  report.world = static_cast<uint32_t>(world());
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
  const bool all = std::ranges::none_of(ranks, [](const auto& rank) { return rank->gone(); });
  if (all && At(report.serving())) report.at = report.serving();
  return report;
}

// Answers newcomers. An error is of a rank that was dropped.
Status RankGroup::Welcome() {
  return ForEach([](RankConnection& rank) { return rank.newcomer() ? rank.SendAttached() : OkStatus(); });
}

// --- commits ---

Status RankGroup::Failed(Status status) {
  status = status.WithContext(Cat("engine ", name_));
  report_.last_error = status.message();
  if (report_.apart) return status;  // it comes again soon
  ++report_.failures;
  static telemetry::LogLimit reasons;  // of what is tried again and again
  const uint64_t times = reasons.Count(Cat(options_.model, ": ", status.message()));
  if (times == 0) return status;
  telemetry::LogError("engine_commit_failed", status, {{"model", options_.model}, {"engine", name_}, {"times", times}});
  return status;
}

Status RankGroup::Prepare(const CommitRequest& request) {
  report_.apart.reset();
  if (!awake()) {
    commit_.reset();
    return OkStatus();
  }
  const auto begin = Clock::now();
  const Status status = TryPrepare(request);
  report_.last_prepare = Since(begin);
  if (status.ok() && commit_ == nullptr) report_.last_error.clear();  // all ranks have the version
  if (status.ok()) return status;
  (void)DropGone();  // a rank that did not do what it was told has no connection any more
  return Failed(status);
}

Status RankGroup::TryPrepare(const CommitRequest& request) {
  const bool is_kept = commit_ != nullptr && commit_changes_ == changes_ && commit_->IsOf(request.version);
  const bool some_wait = SomeWait(request);
  // Before anything else is staged, or compared: a rank writes all that it has staged.
  if (!is_kept || some_wait || At(request.version.held)) commit_.reset();
  if (some_wait) LS_RETURN_IF_ERROR(CatchUp(request));
  LS_RETURN_IF_ERROR(Plan(request, *request.version.layout));
  if (At(request.version.held)) return OkStatus();
  if (commit_changes_ != changes_) commit_.reset();  // a rank was refused
  if (commit_ == nullptr) {
    auto commit = std::make_unique<RankCommit>(*this, request.version, plan_, options_);
    LS_RETURN_IF_ERROR(commit->Prepare(request.deltas));
    commit_ = std::move(commit);
    commit_changes_ = changes_;
  }
  return Agree(AgreeStep::kHeld, request.version.held);
}

// Whether some ranks read the version before, and others wait and may be written as they are: a commit was aborted, or
// a receiver died in it, when they had been written.
bool RankGroup::SomeWait(const CommitRequest& request) const {
  bool read = false;
  bool wait = false;
  for (const auto& rank : ranks_) {
    if (rank->reads().nothing() && !rank->gated()) return false;  // its server may run
    if (request.before && !rank->IsFor(*request.before->layout)) return false;
    wait = wait || rank->reads().nothing();
    read = read || (request.before && rank->reads() == request.before->held);
  }
  return read && wait;
}

// Those that wait are brought to what the others read. In a collective the others may stand still for them, and could
// not be held.
Status RankGroup::CatchUp(const CommitRequest& request) {
  LS_RETURN_IF_ERROR(Plan(request, *request.before->layout));
  RankCommit commit(*this, *request.before, plan_, options_);
  LS_RETURN_IF_ERROR(commit.Prepare(request.deltas));
  LS_RETURN_IF_ERROR(commit.Run());
  telemetry::Log(telemetry::LogLevel::kInfo, "engine_caught_up",
                 {{"model", options_.model}, {"engine", name_}, {"version", commit.version().version}});
  return OkStatus();
}

Status RankGroup::Commit() {
  const std::unique_ptr<RankCommit> commit = std::move(commit_);
  const auto begin = Clock::now();
  if (const Status status = commit->Run(); !status.ok()) return Failed(status);
  report_.last_pause = Since(begin);
  report_.last_written_bytes = commit->written_bytes();
  report_.last_error.clear();
  ++report_.commits;
  telemetry::Log(telemetry::LogLevel::kInfo, "engine_committed",
                 {{"model", options_.model},
                  {"engine", name_},
                  {"run", ToHex(commit->version().run)},
                  {"version", commit->version().version},
                  {"ranks", attached()},
                  {"written_bytes", report_.last_written_bytes},
                  {"pause_s", std::chrono::duration<double>(report_.last_pause).count()}});
  return OkStatus();
}

Status RankGroup::Agree(AgreeStep step, const VersionRef& version) {
  report_.apart.reset();
  const os::Deadline deadline(step == AgreeStep::kHeld ? kHeldPatience : options_.pause_timeout);
  Backoff pause(kLongestLook, kFirstLook);
  Agreement agreed = Agreement::kNotYet;
  while (agreed == Agreement::kNotYet) {
    if (DropGone() || !complete()) return {ErrorCode::kAborted, "a rank went before all had the version"};
    RankConnection& speaker = *ranks_.front();  // one asks for all
    if (!speaker.is_among_others()) return OkStatus();
    LS_ASSIGN_OR_RETURN(agreed, speaker.Agree(step, version));
    if (agreed == Agreement::kYes) return OkStatus();
    if (deadline.Passed() || (options_.cancelled && options_.cancelled())) break;
    if (agreed == Agreement::kNotYet) std::this_thread::sleep_for(pause.Next());
  }
  report_.apart = agreed;
  if (agreed == Agreement::kNo) {
    return {ErrorCode::kAborted, Cat("a receiver on another host of this engine has another version than ",
                                     version.version, ", or has gone back to one")};
  }
  static constexpr std::string_view kLacks[] = {"holds version ", "has paused its ranks for version ",
                                                "has written version ", "serves version "};
  return {ErrorCode::kAborted, Cat("not every receiver of this engine ", kLacks[static_cast<size_t>(step)],
                                   version.version, " yet; look at those of its other hosts")};
}

}  // namespace lockstep::engine
