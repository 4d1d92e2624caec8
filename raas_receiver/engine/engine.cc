#include "raas_receiver/engine/engine.h"

#include <algorithm>
#include <utility>

#include "common/base/text.h"
#include "common/telemetry/log.h"

namespace lockstep::engine {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kIdle{3'600'000};
constexpr milliseconds kBetweenNotes{10'000};  // for receipts
// How often a server that can be asked is asked whether it still serves what it was given, or whether it is there
// again.
constexpr milliseconds kCheck{1'000};
// Between loads because it did not, although it answered all the time: a server that keeps changing its mind is not to
// load without end.
constexpr milliseconds kBetweenLosses{60'000};
// Between loads that fail, at first.
constexpr milliseconds kFirstWait{1'000};

milliseconds Until(std::chrono::steady_clock::time_point when) {
  return std::chrono::ceil<milliseconds>(when - std::chrono::steady_clock::now());
}

}  // namespace

Engine::Engine(const EngineContext& context, EngineConfig config, std::unique_ptr<EngineDriver> driver)
    : context_(context),
      config_(std::move(config)),
      driver_(std::move(driver)),
      backoff_(in_place() ? Backoff() : Backoff(kLongestWait, kFirstWait)),
      owes_resume_(over_http()),
      loaded_(in_place() ? VersionRef() : context_.replicas.served(config_.name)),
      proved_(!over_http()),
      ranks_(RanksOptions()) {
  ranks_.SetChanged([this] {
    ranks_changed_ = true;
    context_.changed();
  });
  thread_ = std::thread([this] { Loop(); });
}

Engine::~Engine() {
  {
    MutexLock lock(mutex_);
    ends_ = true;
  }
  ranks_.Wake();
  thread_.join();
  if (!retired_) EndServing();
  for (auto& wanted : compares_) wanted.set_value(Status(ErrorCode::kCancelled, "the engine ends"));
}

EngineRanksOptions Engine::RanksOptions() {
  EngineRanksOptions options = config_.ranks;
  options.model = context_.model;
  options.engine = config_.name;
  options.threads = context_.engine_threads;
  options.compare_only = !in_place();
  options.cancelled = [this] {
    MutexLock lock(mutex_);
    return ends_ || cancelled_ || (attempt_ && attempt_->cancelled);
  };
  if (over_http()) options.paused_server = [this] { return driver_->Incarnations(); };
  return options;
}

VersionRef Engine::served() const {
  MutexLock lock(mutex_);
  return Served();
}

// In place: what all of its ranks are wholly at. Of a server that is paused, what it was at before: what was written
// since it serves once it is resumed.
VersionRef Engine::Served() const {
  if (!in_place()) {
    if (!driver_->notifies()) return context_.replicas.current().held;
    return proved_ ? loaded_ : VersionRef();
  }
  if (doubted_) return {};
  if (!owes_resume_) return InMemory();
  return ranks_.lost() ? VersionRef() : paused_at_;
}

bool Engine::Behind() const {
  MutexLock lock(mutex_);
  return IsBehind();
}

bool Engine::IsBehind() const {
  const replica::PublishedVersion current = context_.replicas.current();
  return !current.held.nothing() && !current.damaged && Lacks(current.held);
}

// Whether it lacks `current`, and can be given it. Never where no engine is notified.
bool Engine::Lacks(const VersionRef& current) const {
  if (!in_place()) return driver_->notifies() && loaded_ != current;
  return doubted_ || ranks_.Behind(current) || (owes_resume_ && ranks_.AllAt(current));
}

Engine::Clock::time_point Engine::NextChange() const {
  const auto now = Clock::now();
  auto next = Clock::time_point::max();
  for (const auto at : {LateAt(), ranks_.ranks_back_by()}) {
    if (at > now) next = std::min(next, at);
  }
  return next;
}

// Never: it is not behind, or may be.
Engine::Clock::time_point Engine::LateAt() const {
  const Clock::time_point since = behind_;
  const bool never = since == Clock::time_point() || config_.late_after.count() == 0;
  return never ? Clock::time_point::max() : since + config_.late_after;
}

// --- what it is told ---

std::optional<EngineAttempt> WhatToGive(const EngineContext& context, uint64_t number, const std::string& mode,
                                        uint64_t transfer, bool at_once) {
  const replica::PublishedVersion current = context.replicas.current();
  const replica::PublishedVersion previous = context.replicas.previous();
  if (current.held.nothing() || current.damaged) return std::nullopt;
  const auto versions = [&](const replica::PublishedVersion& version, std::span<const std::byte> data,
                            const std::string& how) -> EngineVersions {
    return {{context.model, version.held, version.path, how, version.label},
            {version.held, version.layout, data, version.label}};
  };
  EngineAttempt given{.number = number,
                      .at_once = at_once,
                      .current = versions(current, context.replicas.current_data(), mode),
                      .before = {},
                      .transfer = transfer};
  if (!previous.held.nothing() && !previous.damaged) {
    given.before = versions(previous, context.replicas.previous_data(), "last_good");
  }
  return given;
}

void Engine::Give(const std::optional<EngineAttempt>& given) {
  {
    MutexLock lock(mutex_);
    const auto same = [&](const EngineAttempt& now) {
      return now.number == given->number && now.before.has_value() == given->before.has_value() &&
             (!now.before || now.before->version.held == given->before->version.held);
    };
    if (!std::exchange(taken_back_, false) && given.has_value() == given_.has_value() && (!given || same(*given_))) {
      return;
    }
    given_ = given;
    const bool ordered = given && given->at_once && given->number != tried_;
    if (ordered && attempt_ && attempt_->with.number != given->number && CancelAttempt(/*gives_way=*/false)) {
      driver_->Cancel();
    }
    if (ordered && behind_.load() != Clock::time_point()) behind_ = Clock::now();  // it is late from now on
    BeginIfDue();
  }
  ranks_.Wake();
}

bool Engine::TakeBack() {
  MutexLock lock(mutex_);
  if (state_ == State::kComparing || ReadsPrevious()) return false;
  taken_back_ = true;
  return true;
}

void Engine::GiveWay() {
  MutexLock lock(mutex_);
  if (late() && ReadsPrevious() && CancelAttempt(/*gives_way=*/true)) driver_->Cancel();
}

// Whether there is one that was not cancelled yet: the driver is to be, too.
bool Engine::CancelAttempt(bool gives_way) {
  if (!attempt_ || std::exchange(attempt_->cancelled, true)) return false;
  attempt_->gave_way = gives_way;
  return true;
}

void Engine::Doubt(const VersionRef& damaged) {
  {
    MutexLock lock(mutex_);
    if (in_place()) doubted_ = true;
    if (in_place() || attempt_) doubts_.push_back(damaged);
    const bool given = attempt_ && attempt_->with.current.version.held == damaged;
    if (given && CancelAttempt(/*gives_way=*/false)) driver_->Cancel();
  }
  if (!in_place()) DoubtLoaded(damaged);
  ranks_.Wake();
}

std::future<Result<size_t>> Engine::Verify() {
  std::promise<Result<size_t>> wanted;
  std::future<Result<size_t>> answer = wanted.get_future();
  {
    MutexLock lock(mutex_);
    compares_.push_back(std::move(wanted));
  }
  ranks_.Wake();
  return answer;
}

void Engine::Cancel() {
  MutexLock lock(mutex_);
  cancelled_ = true;
  driver_->Cancel();
}

void Engine::Retire() {
  EndServing();  // another of its name may begin
  retired_ = true;
  Cancel();
}

// --- what it tells ---

bool Engine::under_way() const {
  MutexLock lock(mutex_);
  return attempt_.has_value();
}

std::optional<EngineOutcome> Engine::OutcomeOf(uint64_t number) const {
  MutexLock lock(mutex_);
  if (outcome_.number != number || outcome_.doubted) return std::nullopt;
  return outcome_;
}

bool Engine::RanksReadPrevious() const {
  const replica::PublishedVersion previous = context_.replicas.previous();
  return !previous.held.nothing() && !previous.damaged && previous.held != context_.replicas.current().held &&
         in_place() && ranks_.Reads(previous.held);
}

bool Engine::ReadsPrevious() const {
  const replica::PublishedVersion previous = context_.replicas.previous();
  if (previous.held.nothing()) return false;
  if (attempt_) {
    if (attempt_->with.current.version.path == previous.path) return true;
    const std::optional<EngineVersions>& before = attempt_->with.before;
    // In place it may be read until the pause. A server may be made to return to it.
    const bool reads = in_place() ? state_ != State::kPausing : over_http();
    if (before && before->version.path == previous.path && reads) return true;
  }
  // Ranks are given nothing while the current version is damaged: its repair does not wait for them. Nor does a newer
  // version that another host's receiver has already: these ranks never get the current one.
  return !late() && ranks_.apart() != Agreement::kNo && !context_.replicas.current().damaged && RanksReadPrevious();
}

// --- its thread ---

void Engine::Loop() {
  while (true) {
    TakeDoubts(/*attempt_ended=*/false);
    Track();
    const std::optional<State> next = Next();
    if (!next) return;
    switch (*next) {
      case State::kResting:
        ranks_.Rest(UntilDue());
        break;
      case State::kAsking:
        Ask();
        break;
      case State::kComparing:
        Compare();
        break;
      default:
        Serve();
    }
  }
}

std::optional<Engine::State> Engine::Next() {
  MutexLock lock(mutex_);
  if (ends_) return std::nullopt;
  BeginIfDue();
  if (attempt_) {
    state_ = in_place() ? State::kPreparing : State::kLoading;
  } else if (!taken_back_ && !compares_.empty()) {
    state_ = State::kComparing;
  } else {
    state_ = AskDue() ? State::kAsking : State::kResting;
  }
  return state_;
}

void Engine::Enter(State state) {
  MutexLock lock(mutex_);
  state_ = state;
}

// In Give, too: a sync that follows at once finds the attempt under way.
void Engine::BeginIfDue() {
  if (attempt_ || !Due()) return;
  if (context_.replicas.previous().damaged) given_->before.reset();  // found since it was given
  attempt_ = Attempt{.with = *given_, .failures = driver_->failures()};
}

// Whether it is behind, and the wait after its last failure is over.
bool Engine::Due() const {
  if (taken_back_ || !given_ || retired_ || cancelled_ || !doubts_.empty() || !IsBehind()) return false;
  if (context_.replicas.current().path != given_->current.version.path) return false;  // another is given soon
  const bool fresh = given_->number != tried_;
  if (Rests() && !(fresh && given_->at_once)) return false;
  if (fresh && !late()) return true;
  const bool answers_first = over_http() && (late() || !silence_.ok());
  return Clock::now() >= serve_again_ && (!answers_first || answers_);
}

// A server is asked now and then, and ranks that came to compare are answered.
bool Engine::AskDue() const {
  if (cancelled_) return false;
  const bool asks = over_http() && (!in_place() || (late() && IsBehind())) && Clock::now() >= check_again_;
  return asks || (!in_place() && ranks_changed_);
}

milliseconds Engine::UntilDue() const {
  MutexLock lock(mutex_);
  milliseconds idle = context_.ledger != nullptr ? kBetweenNotes : kIdle;
  const auto sooner = [&](milliseconds left) {
    if (left.count() > 0) idle = std::min(idle, left);
  };
  if (LateAt() != Clock::time_point::max()) sooner(Until(LateAt()));
  sooner(Until(check_again_));
  sooner(Until(serve_again_));
  sooner(Until(pause_again_));
  sooner(Until(ranks_.ranks_back_by()));
  return idle;
}

// Ranks that read the version before, and cannot be written because one of theirs is missing, are behind, too; as is
// what failed, such as ranks that are refused, until it works.
void Engine::Track() {
  {
    MutexLock lock(ledger_mutex_);
    pausing_ = false;
  }
  NoteServing();
  const replica::PublishedVersion current = context_.replicas.current();
  if (current.damaged) return;  // there is nothing that it could take
  if (failed_ && !Behind()) {
    MutexLock lock(mutex_);
    if (current.held != outcome_.version) {  // a rollback to what it serves
      failed_ = false;
      last_error_.clear();
    }
  }
  const bool behind = failed_ || Behind() || RanksReadPrevious();
  const bool was = behind_.load() != Clock::time_point();
  if (behind && !was) {
    behind_ = Clock::now();
    context_.changed();  // the session waits for the time when it is late
  }
  if (!behind && was) behind_ = Clock::time_point();
}

// Doubts that come while an attempt is under way, or about to be, are taken once it has ended: they are of what it
// gives.
void Engine::TakeDoubts(bool attempt_ended) {
  std::vector<VersionRef> doubts;
  {
    MutexLock lock(mutex_);
    if (attempt_ && !attempt_ended) return;
    doubts = doubts_;
  }
  if (doubts.empty()) return;
  if (in_place()) ranks_.Doubt();  // whatever it was written from: deltas lead on from what was wrong
  for (const VersionRef& damaged : doubts) {
    if (!in_place()) DoubtLoaded(damaged);
  }
  MutexLock lock(mutex_);
  doubts_.erase(doubts_.begin(), doubts_.begin() + static_cast<ptrdiff_t>(doubts.size()));
  doubted_ = doubted_ && !doubts_.empty();
}

// Asks the server whether it still serves what it was given, and answers ranks that came to compare. One that does not
// answer serves nothing; one that was restarted serves its own weights.
void Engine::Ask() {
  check_again_ = Clock::now() + kCheck;
  ranks_changed_ = false;
  bool silent = false;
  {
    MutexLock lock(mutex_);
    silent = !silence_.ok();
  }
  Result<bool> serves = true;
  if (!in_place()) {
    serves = StillServes();
  } else if (const Status answers = driver_->Answers(); !answers.ok()) {
    serves = answers;
  }
  {
    MutexLock lock(mutex_);
    answers_ = serves.ok();
    if (serves.ok() && !*serves && !silent) {  // it answered all the time, and does not serve what it was given
      serve_again_ = load_again_;
      load_again_ = Clock::now() + kBetweenLosses;
    }
  }
  context_.changed();
}

// kState for what no memory is to be compared with: no version, or one that is damaged.
Status Engine::CheckComparable(const replica::PublishedVersion& version) {
  if (version.held.nothing()) return {ErrorCode::kState, "no version is held"};
  if (!version.damaged) return OkStatus();
  return {ErrorCode::kState, Cat("version ", version.held.version, " was found damaged: it is compared with nothing")};
}

void Engine::Compare() {
  std::optional<EngineAttempt> given;
  {
    MutexLock lock(mutex_);
    given = given_;
  }
  const Result<size_t> compared = in_place() ? CompareWritten(given) : CompareLoaded(given);
  std::vector<std::promise<Result<size_t>>> wanted;
  {
    MutexLock lock(mutex_);
    wanted.swap(compares_);
    state_ = State::kResting;
  }
  for (auto& one : wanted) one.set_value(compared);
  context_.changed();
}

}  // namespace lockstep::engine
