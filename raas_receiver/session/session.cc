#include "raas_receiver/session/session.h"

#include <algorithm>
#include <vector>

#include "common/base/text.h"
#include "common/os/deadline.h"
#include "common/telemetry/log.h"

namespace lockstep::session {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::hours kLongestWait{1};

// Engines side by side: the longest of each time, and all bytes.
void Record(const engine::EngineOutcome& outcome, v1::SyncRecord& record) {
  if (!outcome.status.ok()) record.set_engine_error(outcome.status.ToString());
  record.set_engine_us(std::max(record.engine_us(), outcome.total_us));
  record.set_prepare_us(std::max(record.prepare_us(), outcome.prepare_us));
  record.set_pause_us(std::max(record.pause_us(), outcome.pause_us));
  record.set_written_bytes(record.written_bytes() + outcome.written_bytes);
}

void LogSync(const v1::SyncRecord& record, const VersionRef& to, const telemetry::Moment& begun) {
  telemetry::Log(telemetry::LogLevel::kInfo, "version_committed",
                 {{"model", record.model()},
                  {"run", ToHex(to.run)},
                  {"version", to.version},
                  {"mode", record.mode()},
                  {"bytes", record.payload_bytes()},
                  {"repaired_blocks", record.repaired_blocks()},
                  {"publish_to_commit_s", static_cast<double>(record.publish_to_commit_us()) / 1e6},
                  {"duration_s", static_cast<double>(begun.NanosSince() / 1'000'000) / 1e3}});
}

}  // namespace

Session::Session(SessionOptions options, std::unique_ptr<origin::Origin> origin,
                 std::unique_ptr<replica::ReplicaPair> replicas, std::unique_ptr<archive::Archiver> archiver,
                 std::vector<engine::EngineEntry> table, SyncFeed& feed)
    : options_(std::move(options)),
      origin_(std::move(origin)),
      replicas_(std::move(replicas)),
      archiver_(std::move(archiver)),
      feed_(feed),
      orders_(options_.model, changed_),
      context_{options_.model, *origin_, *replicas_, archiver_.get(), options_.timeline},
      scrubber_(options_.scrub_round),
      freshness_(options_.unready_after),
      follower_(options_.model, options_.follow, *origin_, *replicas_, changed_),
      ledger_(options_.ledger_path, options_.model, options_.receiver),
      engine_context_{.model = options_.model,
                      .replicas = *replicas_,
                      .engine_threads = options_.engine_threads,
                      .timeline = options_.timeline,
                      .changed = [this] { changed_.Notify(); },
                      .receiver = options_.receiver,
                      .ledger = &ledger_},
      engines_(engine_context_, std::move(table), options_.admission),
      reporter_(
          *origin_, changed_, [this] { return Report(); }, [this] { return follower_.meetings(); }) {
  replicas_->SetDamageFound([this] { changed_.Notify(); });
  replicas_->SetMayGiveUp([this] { return MayGiveUp(); });
}

Session::~Session() {
  RequestStop();
  Join(milliseconds(0));
}

void Session::Start() {
  follower_.Start(stop_.get_token());
  reporter_.Start(stop_.get_token());
  thread_ = std::thread([this] { Loop(); });
}

void Session::RequestStop() {
  stop_.request_stop();
  orders_.Stop();
  MutexLock lock(mutex_);
  endable_.request_stop();
}

void Session::Join(milliseconds timeout) {
  if (!thread_.joinable()) return;  // never started, or joined before
  (void)changed_.WaitFor(timeout, [this] { return ended_.load(); });
  engines_.Cancel();
  thread_.join();
  follower_.Join();
  reporter_.Join();
}

Result<v1::SyncRecord> Session::Pull(bool force_full, milliseconds timeout, const Orders::Cancelled& cancelled) {
  return orders_.Ask(Order::kPull, timeout, cancelled, force_full);
}

Result<size_t> Session::VerifyEngines(const Orders::Cancelled& cancelled) {
  size_t groups = 0;
  Status first;
  const os::Deadline deadline(kEngineCallTime);
  for (std::future<Result<size_t>>& answer : engines_.Verify()) {
    const Result<size_t> verified = orders_.Await(std::move(answer), deadline.Left(), cancelled);
    if (verified.ok()) groups += *verified;
    if (first.ok()) first = ToStatus(verified);
    if (first.code() == ErrorCode::kCancelled || first.code() == ErrorCode::kDeadline) return first;
  }
  if (!first.ok()) return first;
  return groups;
}

std::vector<v1::Receipt> Session::Receipts(const v1::GetReceiptsRequest& request) {
  engines_.NoteServing();
  return ledger_.Find(request);
}

Result<std::shared_ptr<const model::ModelLayout>> Session::layout() const {
  if (auto layout = replicas_->current().layout) return layout;
  if (auto layout = follower_.layout()) return layout;
  return Status(ErrorCode::kNotFound, Cat("the layout of model ", options_.model, " is not known yet"));
}

// In this order: nothing is begun before damage that was found is known here; engines get a version once no sync is to
// follow at once.
const Session::Task Session::kTasks[] = {
    &Session::TakeDamage,  &Session::RollBack, &Session::Synchronize, &Session::Repair, &Session::DropDamaged,
    &Session::GiveEngines, &Session::Settle,   &Session::Prepare,     &Session::Scrub,
};

void Session::Loop() {
  // What changes, and what falls due, after these questions ends the wait.
  for (uint64_t seen = changed_.changes(); !orders_.stopping(); seen = changed_.changes()) {
    state_ = Resting();
    engines_.Tend();
    const VersionRef newest = follower_.newest();
    const bool chosen = newest == replicas_->current().held || !replicas_->rollback().version.nothing();
    if (!in_step_ && !newest.nothing() && chosen) ToArchive();
    const milliseconds until = UntilDue();
    const bool did = std::ranges::any_of(kTasks, [this](Task task) { return (this->*task)(); });
    if (!did) (void)changed_.WaitPast(seen, until);
  }
  engines_.GiveNothing();
  (void)changed_.WaitFor(std::chrono::hours(24 * 365), [this] { return !engines_.under_way(); });
  (void)Settle();
  Answer();
  ended_ = true;
  changed_.Notify();
}

// What is held is what the origin has, or had, or what an operator chose of that.
void Session::ToArchive() {
  in_step_ = true;
  if (archiver_ != nullptr) archiver_->InStep();
}

// How long no task becomes due by time alone.
milliseconds Session::UntilDue() const {
  milliseconds until = std::min<milliseconds>(scrubber_.UntilDue(), kLongestWait);
  const auto now = std::chrono::steady_clock::now();
  for (const auto again : {sync_again_, repair_again_, engines_.NextChange()}) {
    if (again > now) until = std::min(until, std::chrono::ceil<milliseconds>(again - now));
  }
  return until;
}

bool Session::Behind() const {
  const replica::Rollback rollback = replicas_->rollback();
  const bool held_back = rollback.skip ? follower_.newest() == rollback.version : !rollback.version.nothing();
  const replica::PublishedVersion current = replicas_->current();
  return !held_back && follower_.Behind(current.held, current.digest);
}

bool Session::SyncWanted() const {
  return orders_.due(Order::kPull) || (UntilRetry().count() <= 0 && Behind());
}

milliseconds Session::UntilRetry() const {
  return std::chrono::ceil<milliseconds>(sync_again_ - std::chrono::steady_clock::now());
}

v1::SessionState Session::Resting() const {
  if (UntilRetry().count() > 0) return v1::SESSION_STATE_BACKING_OFF;
  const replica::Rollback rollback = replicas_->rollback();
  return rollback.version.nothing() || rollback.skip ? v1::SESSION_STATE_WAITING : v1::SESSION_STATE_HELD;
}

// A newer version, or what a pull asks for. Not while an engine reads the other replica: a sync writes there.
bool Session::Synchronize() {
  if (!SyncWanted() || !engines_.TakeBack()) return false;
  const telemetry::Moment begun;
  std::vector<Order> pulls = orders_.Take(Order::kPull);
  const VersionRef announced = follower_.newest();
  Sync sync(context_,
            {.stop = BeginEndable(),
             .force_full = std::ranges::any_of(pulls, &Order::force_full),
             .layout = follower_.layout(),
             .announced = follower_.head().layout,
             .skipped = pulls.empty() ? replicas_->rollback().version : VersionRef()},
            state_);
  const Status status = RunSync(sync);
  sync_again_ = {};
  if (status.ok() && sync.goes_on()) {
    // Engines wait for the newest version, and who asked for it does.
    ++number_;
    backoff_.Reset();
    follower_.SetLayout(sync.layout());
    Conclude(sync, status, begun);
    feed_.Publish(sync.record());
    orders_.PutBack(std::move(pulls));
    return true;
  }
  if (status.ok()) {
    backoff_.Reset();
    follower_.Synced(announced, replicas_->current());
    const Status forgotten = replicas_->EndRollback();
    if (!forgotten.ok()) telemetry::LogError("rollback_end_failed", forgotten, {{"model", options_.model}});
    // At once: engines may take their time with what came now.
    const replica::PublishedVersion current = replicas_->current();
    if (options_.follow && origin_->can().follow)
      origin_->Follow({current.held, current.digest, current.layout, replicas_->current_hashes()}, stop_.get_token());
  } else if (!Ended(status)) {
    sync_again_ = std::chrono::steady_clock::now() + backoff_.Next();
  }
  follower_.SetLayout(sync.layout());
  Conclude(sync, status, begun);
  if (!status.ok()) {
    feed_.Publish(sync.record());
    AnswerAll(std::move(pulls), status);
    return true;
  }
  Answer();  // the one before: its version is committed, and some engine has not ended with it yet
  // Also of a version that was there: who pulls wants engines to have it. An attempt at it is let end.
  if (sync.record().mode() != "up_to_date" || !engines_.under_way()) ++number_;
  unanswered_ = Unanswered{.orders = std::move(pulls),
                           .status = {},
                           .record = sync.record(),
                           .number = number_,
                           .waiting = engines_.Waiting()};
  if (unanswered_->waiting.empty()) Answer();
  (void)GiveEngines();
  return true;
}

// A current version that is damaged, made again in the other replica.
bool Session::Repair() {
  const bool due = replicas_->current().damaged && std::chrono::steady_clock::now() >= repair_again_;
  if (!due || !engines_.TakeBack()) return false;
  const telemetry::Moment begun;
  Sync sync(context_, {.stop = BeginEndable(), .repair = true, .layout = replicas_->current().layout, .announced = {}},
            state_);
  const Status status = RunSync(sync);
  if (!status.ok() && !Ended(status)) repair_again_ = std::chrono::steady_clock::now() + repair_backoff_.Next();
  if (status.ok()) ++number_;
  if (status.ok() && unanswered_) unanswered_->number = number_;
  Conclude(sync, status, begun);
  feed_.Publish(sync.record());
  return true;
}

// Whether a sync was ended by a rollback, and went neither well nor badly.
bool Session::Ended(const Status& status) const {
  return status.code() == ErrorCode::kCancelled && orders_.due(Order::kRollback);
}

// What any sync leaves: in the log, and for the engine.
void Session::Conclude(const Sync& sync, const Status& status, const telemetry::Moment& begun) {
  const v1::SyncRecord& record = sync.record();
  (void)TakeDamage();  // that it found
  if (!Ended(status)) history_.Add(status, record, sync.lane_retries());
  if (!status.ok()) {
    if (status.code() != ErrorCode::kCancelled)
      telemetry::LogError("sync_failed", status, {{"model", options_.model}, {"mode", record.mode()}});
  } else if (record.mode() != "up_to_date") {
    repair_backoff_.Reset();
    if (sync.forced()) engines_.Doubt({});  // an operator wants all of it again
    LogSync(record, replicas_->current().held, begun);
    mode_ = record.mode();
    transfer_ = record.transfer();
  }
  if (status.ok()) ToArchive();
  changed_.Notify();  // for the reports
}

// What is done with this is ended by RequestStop and Rollback.
std::stop_token Session::BeginEndable() {
  MutexLock lock(mutex_);
  endable_ = std::stop_source();
  if (rollback_ || orders_.stopping()) endable_.request_stop();
  return endable_.get_token();
}

// A rollback that comes before this call ends the sync, and finds the version before. One that comes after is refused.
bool Session::MayGiveUp() {
  MutexLock lock(mutex_);
  if (endable_.stop_requested()) return false;
  given_up_ = replicas_->previous().held;
  return true;
}

Status Session::RunSync(Sync& sync) {
  Status status = sync.Run();
  MutexLock lock(mutex_);
  given_up_ = {};
  return status;
}

bool Session::GiveEngines() {
  engines_.Give(number_, mode_, transfer_, /*at_once=*/mode_ == "rollback");
  return false;
}

// Memory for what comes next, before it comes.
bool Session::Prepare() {
  return follower_.Prepare(BeginEndable()) || replicas_->WarmTarget();
}

// Answers the last orders once no engine is to be waited for: not one that is late, and not one that went.
bool Session::Settle() {
  if (!unanswered_ || replicas_->current().damaged) return false;
  std::erase_if(unanswered_->waiting, [this](const auto& engine) { return IsSettled(*engine); });
  if (!unanswered_->waiting.empty()) return false;
  Answer();
  return true;
}

bool Session::IsSettled(const engine::Engine& engine) {
  const bool has_it = !engine.under_way() && !engine.Behind();
  Status& status = unanswered_->status;
  if (const auto outcome = engine.OutcomeOf(unanswered_->number)) {
    Record(*outcome, unanswered_->record);
    if (unanswered_->rollback && status.ok()) status = outcome->status;
    return true;
  }
  if (!engine.late()) return has_it;
  if (unanswered_->rollback && status.ok()) {
    const std::string why = engine.error();
    status = {ErrorCode::kDeadline, Cat("engine ", engine.name(), " is late", why.empty() ? "" : ": ", why)};
  }
  return true;
}

// Those that wait for the version that was current, and those that watch.
void Session::Answer() {
  if (!unanswered_) return;
  Unanswered& last = *unanswered_;
  if (!last.rollback) feed_.Publish(last.record);
  if (last.rollback && !last.waiting.empty() && last.status.ok()) {
    last.status = {ErrorCode::kCancelled, Cat("model ", options_.model, ": not every engine served it in time")};
  }
  AnswerAll(std::move(last.orders), last.status.ok() ? Orders::Answer(last.record) : Orders::Answer(last.status));
  unanswered_.reset();
}

// A damaged version that is not current, once no engine reads it: it can be had again.
bool Session::DropDamaged() {
  if (!replicas_->previous().damaged || !engines_.TakeBack(/*late_give_way=*/false)) return false;
  const Status dropped = replicas_->DropOther();
  if (!dropped.ok() && !drop_failed_) telemetry::LogWarn("replica_drop_failed", dropped, {{"model", options_.model}});
  drop_failed_ = !dropped.ok();
  if (dropped.ok() && !HoldsDamage()) history_.EndDamage();
  return dropped.ok();
}

// What was found damaged since the last time, by this session or another thread. A replica that holds it still is
// marked.
bool Session::TakeDamage() {
  const std::vector<replica::Damage> damage = replicas_->TakeDamage();
  for (const replica::Damage& found : damage) {
    telemetry::LogError("damage_found", found.what,
                        {{"model", options_.model},
                         {"version", found.held.version},
                         {"blocks", found.blocks.size()},
                         {"by", found.by}});
    history_.AddDamage(found.what, found.blocks.size());
    engines_.Doubt(found.held);
    repair_again_ = {};
  }
  if (!damage.empty() && !HoldsDamage()) history_.EndDamage();
  return !damage.empty();
}

bool Session::HoldsDamage() const {
  return replicas_->current().damaged || replicas_->previous().damaged;
}

// Hashes the next piece of what is held, when it is due.
bool Session::Scrub() {
  return scrubber_.Step(*replicas_);
}

}  // namespace lockstep::session
