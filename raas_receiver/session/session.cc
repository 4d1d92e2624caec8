#include "raas_receiver/session/session.h"

#include <algorithm>

#include "common/base/text.h"
#include "common/telemetry/log.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstBackoff{100};
constexpr milliseconds kLongestBackoff{10'000};
constexpr milliseconds kIdle{3'600'000};
// How often a server that can be asked is asked whether it still serves what it was told.
constexpr milliseconds kLook{5'000};
// The same, after it did not: a server of several minds is not to load without end.
constexpr milliseconds kLookAfterLoss{60'000};

EngineSideOptions ForModel(EngineSideOptions options, const std::string& model) {
  options.targets.model = model;
  return options;
}

void Record(const ServeOutcome& outcome, v1::SyncRecord& record) {
  if (!outcome.status.ok()) record.set_engine_error(outcome.status.ToString());
  record.set_engine_us(static_cast<uint64_t>(outcome.total.count()));
  record.set_prepare_us(static_cast<uint64_t>(outcome.prepare.count()));
  record.set_pause_us(static_cast<uint64_t>(outcome.pause.count()));
  record.set_written_bytes(outcome.written_bytes);
}

void LogSync(const v1::SyncRecord& record, const Held& to, milliseconds total) {
  Log(LogLevel::kInfo, "version_committed",
      {{"model", record.model()},
       {"run", ToHex(to.run)},
       {"version", to.version},
       {"mode", record.mode()},
       {"bytes", record.payload_bytes()},
       {"repaired_blocks", record.repaired_blocks()},
       {"publish_to_commit_s", static_cast<double>(record.publish_to_commit_us()) / 1e6},
       {"duration_s", static_cast<double>(total.count()) / 1e3}});
}

}  // namespace

Session::Session(SessionOptions options, std::unique_ptr<ReplicaPair> replicas, std::unique_ptr<EngineDriver> driver,
                 IoThreads& io, WorkerPool& pool, SyncFeed& feed)
    : options_(std::move(options)),
      replicas_(std::move(replicas)),
      feed_(feed),
      agent_(options_.agent),
      live_({.model = options_.model,
             .receiver = options_.receiver,
             .lanes = options_.lanes,
             .enabled = options_.follow && options_.live,
             .timeline = options_.timeline},
            agent_, io),
      context_{.model = options_.model,
               .receiver = options_.receiver,
               .lanes = options_.lanes,
               .agent = agent_,
               .replicas = *replicas_,
               .io = io,
               .live = live_,
               .timeline = options_.timeline},
      backoff_(kFirstBackoff, kLongestBackoff),
      engine_backoff_(kFirstBackoff, kLongestBackoff),
      layout_(replicas_->current().layout),
      served_(replicas_->served()),
      engine_(ForModel(options_.engine, options_.model), std::move(driver), *replicas_, pool) {
  engine_.targets().SetChanged([this] {
    std::lock_guard lock(mutex_);
    changed_.notify_all();
  });
}

void Session::Start() {
  watch_ = std::make_unique<VersionWatch>(
      agent_, options_.model,
      VersionWatch::Callbacks{[this](const v1::VersionEvent& event) { OnVersion(event); },
                              [this](const Status& status) { OnBroken(status); }});
  thread_ = std::thread([this] { Loop(); });
}

Session::~Session() {
  RequestStop();
  Join(milliseconds(0));
}

void Session::RequestStop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    if (running_ != nullptr) running_->Cancel();
  }
  live_.Cancel();
  changed_.notify_all();
  agent_.Cancel();
}

void Session::Join(milliseconds timeout) {
  if (!thread_.joinable()) return;  // never started, or joined before
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [this] { return ended_; });
  }
  engine_.Cancel();
  thread_.join();
  watch_.reset();
}

void Session::Loop() {
  // A receiver killed between commit and engine tells the engine when it comes back.
  if (engine_.told() && engine_.Behind(served_)) ServeAgain("recovered");
  v1::SessionState state = v1::SESSION_STATE_WAITING;
  while (true) {
    EnterState(state);
    {
      std::lock_guard lock(mutex_);
      if (stopping_) break;
    }
    switch (state) {
      case v1::SESSION_STATE_WAITING:
      case v1::SESSION_STATE_HELD:
        state = Wait();
        break;
      case v1::SESSION_STATE_BACKING_OFF:
        state = BackOff();
        break;
      default:
        state = Synchronize();
    }
  }
  std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

bool Session::Wanted() const {
  if (wanted_.pulls != done_.pulls) return true;
  const bool follows = options_.follow && state_ != v1::SESSION_STATE_HELD;
  return follows && !newest_.nothing() && newest_ != replicas_->current().held;
}

bool Session::Unprepared() const {
  return options_.follow && !agent_layout_.IsZero() && agent_layout_ != prepared_;
}

// Takes the memory of a model that the agent has described, before its first version comes. True when it did something;
// what goes wrong here goes wrong again, and is told, in the sync.
bool Session::Prepare() {
  {
    std::lock_guard lock(mutex_);
    if (!Unprepared()) return false;
    prepared_ = agent_layout_;
    if (layout_ != nullptr && layout_->digest() == prepared_) return false;
  }
  const auto layout = agent_.GetLayout(options_.model);
  const Status status = layout.ok() ? replicas_->Allocate(*layout) : layout.status();
  if (!status.ok()) {
    LogWarn("replicas_not_prepared", status, {{"model", options_.model}});
    return true;
  }
  std::lock_guard lock(mutex_);
  layout_ = *layout;
  return true;
}

// An engine lacks the current version, and it is time to try; or somebody wants to know what engines have.
bool Session::EngineWaits() const {
  if (wanted_.verifies != done_.verifies) return true;
  return engine_.TriesAgain() && std::chrono::steady_clock::now() >= serve_again_ && engine_.Behind(served_);
}

// Until EngineWaits may change without anybody telling.
milliseconds Session::UntilEngineRetry() const {
  const auto left = std::chrono::duration_cast<milliseconds>(serve_again_ - std::chrono::steady_clock::now());
  const milliseconds idle = engine_.CanBeAsked() ? kLook : kIdle;
  return left.count() < 0 ? idle : std::min(idle, left + milliseconds(1));
}

// A server that was started again serves its own weights, and says so when asked.
void Session::LookAtEngine() {
  const auto now = std::chrono::steady_clock::now();
  if (!engine_.CanBeAsked() || now < look_again_) return;
  look_again_ = now + kLook;
  const Result<bool> still = engine_.StillServes(served_);
  if (!still.ok() || *still) return;
  look_again_ = now + kLookAfterLoss;
  Log(LogLevel::kWarn, "engine_started_again", {{"model", options_.model}, {"version", served_.version}});
  std::lock_guard lock(mutex_);
  served_ = {};
}

// States Waiting and Held. After: Negotiating when a sync is wanted, Held after a rollback, else the same again.
v1::SessionState Session::Wait() {
  const auto called = [this] { return stopping_ || wanted_.rollbacks != done_.rollbacks || Wanted() || EngineWaits(); };
  std::unique_lock lock(mutex_);
  const v1::SessionState resting = state_;
  while (!called()) {
    lock.unlock();
    const bool busy = Prepare() || replicas_->WarmTarget();
    LookAtEngine();
    lock.lock();
    if (!busy) changed_.wait_for(lock, UntilEngineRetry(), [&] { return called() || Unprepared(); });
  }
  if (stopping_) return resting;
  const bool roll_back = wanted_.rollbacks != done_.rollbacks;
  if (!roll_back && Wanted()) return v1::SESSION_STATE_NEGOTIATING;
  lock.unlock();
  if (roll_back) return RollBack();
  TendEngines();
  return resting;
}

// State BackingOff, after an error. After: Negotiating once the time is over or a Pull asks for it, Waiting when
// nothing is wanted any more, Held after a rollback.
v1::SessionState Session::BackOff() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, backoff_.Next(), [this] {
    return stopping_ || wanted_.rollbacks != done_.rollbacks || wanted_.pulls != done_.pulls || EngineWaits();
  });
  if (wanted_.rollbacks != done_.rollbacks) {
    lock.unlock();
    return RollBack();
  }
  if (EngineWaits()) {
    lock.unlock();
    TendEngines();
    lock.lock();
  }
  return stopping_ || Wanted() ? v1::SESSION_STATE_NEGOTIATING : v1::SESSION_STATE_WAITING;
}

// kState when the other replica holds nothing, or nothing that would be going back.
Status Session::CheckOlderVersion() const {
  const Held current = replicas_->current().held;
  const Held other = replicas_->previous().held;
  const bool newer = other.run == current.run && other.version >= current.version;
  if (!other.nothing() && !newer) return OkStatus();
  return {ErrorCode::kState, Cat("model ", options_.model, ": the other replica holds no version before ",
                                 current.version, "; nothing to go back to")};
}

// After: Held; the state before, as far as it lasts, when there was nothing to go back to.
v1::SessionState Session::RollBack() {
  const bool held_before = Describe().state() == v1::SESSION_STATE_HELD;
  Status status = CheckOlderVersion();
  if (status.ok()) status = replicas_->SwitchToOther();
  const bool switched = status.ok();
  if (switched) live_.Close();
  if (switched) {
    const Held held = replicas_->current().held;
    Log(LogLevel::kWarn, "rolled_back",
        {{"model", options_.model}, {"run", ToHex(held.run)}, {"version", held.version}});
    status = Serve("rollback").status;
  }
  std::lock_guard lock(mutex_);
  done_.rollbacks = wanted_.rollbacks;
  rollback_outcome_ = status;
  changed_.notify_all();
  return switched || held_before ? v1::SESSION_STATE_HELD : v1::SESSION_STATE_WAITING;
}

// The states of Sync, then Notifying. After: Waiting, or BackingOff after an error.
v1::SessionState Session::Synchronize() {
  const auto begin = std::chrono::steady_clock::now();
  Orders taken;
  Held newest;
  Sync sync(context_, TakeOrder(taken, newest), [this](v1::SessionState state) { EnterState(state); });
  {
    std::lock_guard lock(mutex_);
    running_ = &sync;
    if (stopping_) sync.Cancel();
  }
  const Status status = sync.Run();
  const Held held = replicas_->current().held;
  {
    std::lock_guard lock(mutex_);
    running_ = nullptr;
    // What was pulled may be newer than the last announcement, which is then no reason to sync again.
    const bool stale = newest_ == newest || (newest_.run == held.run && newest_.version < held.version);
    if (status.ok() && stale) newest_ = held;
  }
  v1::SyncRecord record = sync.record();
  if (status.ok()) FollowLive(sync);
  if (status.ok() && record.mode() != "up_to_date") {
    LogSync(record, held, std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin));
  }
  if (status.ok() && engine_.Behind(served_)) Record(Serve(record.mode(), record.transfer()), record);
  FinishSync(status, sync, record, taken);
  return status.ok() ? v1::SESSION_STATE_WAITING : v1::SESSION_STATE_BACKING_OFF;
}

// What comes next is asked for at once: an engine may take its time with what came now.
void Session::FollowLive(const Sync& sync) {
  if (sync.record().link_bytes_per_s() > 0) context_.link_bytes_per_s = sync.record().link_bytes_per_s();
  // Known once something was pulled; without that nobody is to send anything early.
  if (sync.record().payload_bytes() > 0) beside_agent_ = sync.beside_agent();
  if (beside_agent_.value_or(true)) {
    live_.Close();
  } else {
    live_.Follow(replicas_->current().held, sync.layout(), context_.link_bytes_per_s);
  }
}

SyncOrder Session::TakeOrder(Orders& taken, Held& newest) {
  std::lock_guard lock(mutex_);
  taken = wanted_;
  newest = newest_;
  wanted_.force_full = false;
  return {taken.force_full, layout_, agent_layout_};
}

void Session::FinishSync(const Status& status, const Sync& sync, const v1::SyncRecord& record, const Orders& taken) {
  if (status.ok()) {
    backoff_.Reset();
  } else if (status.code() != ErrorCode::kCancelled) {
    LogError("sync_failed", status, {{"model", options_.model}, {"mode", record.mode()}});
  }
  std::lock_guard lock(mutex_);
  (status.ok() ? syncs_ : failures_) += 1;
  repaired_blocks_ += record.repaired_blocks();
  lane_retries_ += sync.lane_retries();
  layout_ = sync.layout();
  last_error_ = status.ok() ? record.engine_error() : status.ToString();
  pull_outcome_ = status;
  last_record_ = record;
  done_.pulls = taken.pulls;
  changed_.notify_all();
  feed_.Publish(record);
}

// What EngineWaits is for.
void Session::TendEngines() {
  uint64_t verifies = 0;
  {
    std::lock_guard lock(mutex_);
    verifies = wanted_.verifies == done_.verifies ? 0 : wanted_.verifies;
  }
  if (verifies == 0) return ServeAgain("again");
  const Status status = engine_.Verify();
  std::lock_guard lock(mutex_);
  done_.verifies = verifies;
  verify_outcome_ = status;
  changed_.notify_all();
}

// Outside of a sync: for engines that came, or came to, after it.
void Session::ServeAgain(const std::string& mode) {
  const ServeOutcome outcome = Serve(mode);
  std::lock_guard lock(mutex_);
  last_error_ = outcome.status.ok() ? "" : outcome.status.ToString();
}

// Makes the engine serve the current version, which pull `transfer` brought; 0: none did.
ServeOutcome Session::Serve(const std::string& mode, uint64_t transfer) {
  EnterState(v1::SESSION_STATE_NOTIFYING);
  ServeOutcome outcome;
  {
    const Held held = replicas_->current().held;
    SpanScope span(
        engine_.told() ? options_.timeline : nullptr,
        {.name = "engine", .model = options_.model, .run = held.run, .version = held.version, .transfer = transfer});
    outcome = engine_.Serve(mode, served_);
    span.span().bytes = outcome.written_bytes;
  }
  const bool by_directory = engine_.told() && !engine_.in_place();
  if (by_directory && outcome.served != served_) {
    const Status marked = replicas_->MarkServed(outcome.served);
    if (!marked.ok()) LogWarn("served_version_not_recorded", marked, {{"model", options_.model}});
  }
  std::lock_guard lock(mutex_);
  served_ = outcome.served;
  if (outcome.status.ok()) {
    engine_backoff_.Reset();
  } else {
    serve_again_ = std::chrono::steady_clock::now() + engine_backoff_.Next();
  }
  return outcome;
}

void Session::OnVersion(const v1::VersionEvent& event) {
  const Result<Held> newest = FromProto(event.newest());
  const auto layout = Bytes16(event.layout_digest());
  std::lock_guard lock(mutex_);
  watch_error_.clear();
  if (!newest.ok() || !layout.ok()) {
    watch_error_ = (newest.ok() ? layout.status() : newest.status()).ToString();
    return;
  }
  newest_ = *newest;
  agent_layout_ = {*layout};
  changed_.notify_all();
}

void Session::OnBroken(const Status& status) {
  std::lock_guard lock(mutex_);
  if (stopping_) return;
  if (watch_error_.empty()) LogWarn("version_stream_down", status, {{"model", options_.model}});
  watch_error_ = status.ToString();
}

void Session::EnterState(v1::SessionState state) {
  std::lock_guard lock(mutex_);
  state_ = state;
}

}  // namespace lockstep
