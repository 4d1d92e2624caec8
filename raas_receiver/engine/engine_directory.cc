// Engines by the directory: a server, or a hook, loads what is published.
#include <utility>

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "raas_receiver/engine/engine.h"

namespace lockstep::engine {
namespace {

// A server may be too busy for one question. One that leaves so many in a row without an answer does not serve.
constexpr int kMostUnanswered = 2;

// What the server serves after `outcome`, as a version; `loaded` is what it served before.
VersionRef ServedAfter(Serving outcome, const EngineAttempt& attempt, const VersionRef& loaded) {
  switch (outcome) {
    case Serving::kNew:
      return attempt.current.version.held;
    case Serving::kOld:
      return loaded;
    case Serving::kLastGood:
      return attempt.before ? attempt.before->version.held : VersionRef();
    case Serving::kUnknown:
      break;
  }
  return {};
}

}  // namespace

EngineOutcome Engine::Load(const EngineAttempt& attempt) {
  std::optional<EngineVersion> last_good;
  if (attempt.before && !attempt.before->version.path.empty() && over_http()) last_good = attempt.before->version;
  EndServing();
  LoadOutcome outcome = driver_->Load(attempt.current.version, last_good);
  return {.status = std::move(outcome.status),
          .version = {},
          .served = ServedAfter(outcome.serving, attempt, loaded()),
          .reverted = outcome.serving == Serving::kLastGood};
}

Result<bool> Engine::StillServes() {
  const replica::PublishedVersion current = context_.replicas.current();
  if (!current.held.nothing()) (void)ranks_.Admit(*current.layout);
  if (!over_http()) return true;
  const VersionRef loaded = this->loaded();
  const Result<std::optional<bool>> still = AskServer(loaded);
  if (!still.ok()) {
    TakeSilence(still.status());
    return still.status();
  }
  if (Believe(*still) || loaded.nothing()) return true;
  telemetry::Log(telemetry::LogLevel::kWarn, "engine_restarted",
                 {{"model", context_.model}, {"engine", config_.name}, {"version", loaded.version}});
  SetLoaded({});
  return false;
}

// As EngineDriver::StillServes; nothing also where it was given nothing that is held here.
Result<std::optional<bool>> Engine::AskServer(const VersionRef& loaded) const {
  const replica::ReplicaPair& replicas = context_.replicas;
  for (const replica::PublishedVersion& version : {replicas.current(), replicas.previous()}) {
    if (loaded.nothing() || version.held != loaded) continue;
    return driver_->StillServes({context_.model, loaded, version.path, "check", version.label});
  }
  LS_RETURN_IF_ERROR(driver_->Answers());
  return std::optional<bool>();
}

// Without a connection the server is gone, and what listens there next may be another.
void Engine::TakeSilence(const Status& status) {
  if (!over_http() || status.code() == ErrorCode::kCancelled) return;
  MutexLock lock(mutex_);
  if (++unanswered_ < kMostUnanswered && status.code() != ErrorCode::kUnavailable) return;
  proved_ = false;
  if (!silence_.ok()) return;
  telemetry::LogWarn("engine_silent", status, {{"model", context_.model}, {"engine", config_.name}});
  silence_ = status;
  silent_since_unix_ns_ = telemetry::UnixNanos();
}

// Whether it serves what it was given, by what it says: one that cannot say is not believed after a silence.
bool Engine::Believe(std::optional<bool> says) {
  MutexLock lock(mutex_);
  unanswered_ = 0;
  silence_ = OkStatus();
  proved_ = says.value_or(proved_);
  return proved_;
}

Result<size_t> Engine::CompareLoaded(const std::optional<EngineAttempt>& given) {
  if (ranks_.empty()) return 0;
  const VersionRef held = served();
  if (held.nothing()) return Status(ErrorCode::kState, "it is not known which version engines serve");
  const replica::PublishedVersion current = context_.replicas.current();
  const replica::PublishedVersion version = held == current.held ? current : context_.replicas.previous();
  const EngineVersions* with = given && given->current.version.held == held ? &given->current : nullptr;
  if (given && given->before && given->before->version.held == held) with = &*given->before;
  if (version.held == held) LS_RETURN_IF_ERROR(CheckComparable(version));
  if (version.held != held || with == nullptr) {
    return Status(ErrorCode::kState, Cat("engines serve version ", held.version, ", which is not held any more"));
  }
  Result<size_t> compared = ranks_.Verify(with->data);
  if (compared.status().code() == ErrorCode::kCorrupt) SetLoaded({});  // it is to load it again
  return compared;
}

// It loaded one replica whole. The version that it serves and that is current lies in the other one.
void Engine::DoubtLoaded(const VersionRef& damaged) {
  const VersionRef loaded = this->loaded();
  const bool elsewhere = loaded == context_.replicas.current().held && loaded != damaged;
  if (damaged.nothing() || !elsewhere) SetLoaded({});  // also for the receiver after this one
}

VersionRef Engine::loaded() const {
  MutexLock lock(mutex_);
  return loaded_;
}

void Engine::SetLoaded(const VersionRef& loaded) {
  MutexLock writing(note_mutex_);
  {
    MutexLock lock(mutex_);
    if (std::exchange(loaded_, loaded) == loaded) return;
  }
  if (!driver_->notifies()) return;
  const Status marked = context_.replicas.MarkServed(config_.name, loaded);
  if (!marked.ok()) telemetry::LogWarn("served_version_record_failed", marked, {{"model", context_.model}});
}

}  // namespace lockstep::engine
