// By the directory: a server, or a hook, loads what is published.
#include <utility>

#include "common/base/mutex.h"
#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "raas_receiver/session/engine_route.h"

namespace lockstep::session {
namespace {

// A server may be too busy for one question. One that leaves so many in a row without an answer does not serve.
constexpr int kMostUnanswered = 2;

// What the server serves after `outcome`, as a version.
VersionRef ServedAfter(engines::Serving outcome, const EngineAttempt& attempt, const VersionRef& served) {
  switch (outcome) {
    case engines::Serving::kNew:
      return attempt.current.version.held;
    case engines::Serving::kOld:
      return served;
    case engines::Serving::kLastGood:
      return attempt.before ? attempt.before->version.held : VersionRef();
    case engines::Serving::kUnknown:
      break;
  }
  return {};
}

class DirectoryRoute final : public EngineRoute {
 public:
  DirectoryRoute(const EngineContext& context, const EngineConfig& config, engines::EngineDriver& driver,
                 targets::EngineTargets& targets)
      : context_(context),
        config_(config),
        driver_(driver),
        targets_(targets),
        proved_(!driver.controls_server()),
        served_(context.replicas.served(config.name)) {}

  VersionRef served() const override {
    if (!driver_.notifies()) return context_.replicas.current().held;
    MutexLock lock(mutex_);
    return proved_ ? served_ : VersionRef();
  }

  Status Trouble() const override {
    MutexLock lock(mutex_);
    return silence_;
  }
  bool Behind(const VersionRef& current) const override { return driver_.notifies() && given() != current; }
  bool Paused() const override { return false; }
  bool AttemptReadsBefore() const override { return driver_.controls_server(); }
  bool RanksRead(const VersionRef&) const override { return false; }

  EngineOutcome Serve(const EngineAttempt& attempt) override {
    std::optional<engines::EngineVersion> last_good;
    if (attempt.before && driver_.controls_server()) last_good = attempt.before->version;
    engines::LoadOutcome loaded = driver_.Load(attempt.current.version, last_good);
    return {.status = std::move(loaded.status),
            .version = {},
            .served = ServedAfter(loaded.serving, attempt, given()),
            .reverted = loaded.serving == engines::Serving::kLastGood};
  }

  Result<bool> Check() override {
    const replica::PublishedVersion current = context_.replicas.current();
    if (!current.held.nothing()) (void)targets_.Admit(*current.layout);
    if (!driver_.controls_server()) return true;
    const VersionRef given = this->given();
    const Result<std::optional<bool>> still = StillServes(given);
    if (!still.ok()) {
      TakeSilence(still.status());
      return still.status();
    }
    if (Believe(*still) || given.nothing()) return true;
    telemetry::Log(telemetry::LogLevel::kWarn, "engine_restarted",
                   {{"model", context_.model}, {"engine", config_.name}, {"version", given.version}});
    SetServed({});
    return false;
  }

  Result<size_t> Verify() override {
    if (targets_.empty()) return 0;
    const VersionRef held = served();
    if (held.nothing()) return Status(ErrorCode::kState, "it is not known which version engines serve");
    const replica::ReplicaPair& replicas = context_.replicas;
    const replica::PublishedVersion current = replicas.current();
    const replica::PublishedVersion previous = replicas.previous();
    if (held == current.held) return Compare(current, replicas.current_data());
    if (held == previous.held) return Compare(previous, replicas.previous_data());
    return Status(ErrorCode::kState, Cat("engines serve version ", held.version, ", which is not held any more"));
  }

  void Took(const EngineOutcome& outcome) override {
    SetServed(outcome.served);
    if (outcome.status.ok() || outcome.reverted) (void)Believe(true);
    if (outcome.status.code() == ErrorCode::kUnavailable) TakeSilence(outcome.status);
  }
  // It loaded one replica whole. The version that it serves and that is current lies in the other one.
  void Doubt(const VersionRef& damaged) override {
    const VersionRef given = this->given();
    const bool elsewhere = given == context_.replicas.current().held && given != damaged;
    if (damaged.nothing() || !elsewhere) SetServed({});  // also for the receiver after this one
  }

 private:
  VersionRef given() const {
    MutexLock lock(mutex_);
    return served_;
  }

  // As EngineDriver's, with nothing also where it was given nothing that is held here.
  Result<std::optional<bool>> StillServes(const VersionRef& given) {
    const replica::ReplicaPair& replicas = context_.replicas;
    for (const replica::PublishedVersion& version : {replicas.current(), replicas.previous()}) {
      if (given.nothing() || version.held != given) continue;
      return driver_.StillServes({context_.model, given, version.path, "check", version.label});
    }
    LS_RETURN_IF_ERROR(driver_.Answers());
    return std::optional<bool>();
  }

  // Without a connection the server is gone, and what listens there next may be another.
  void TakeSilence(const Status& status) {
    if (!driver_.controls_server() || status.code() == ErrorCode::kCancelled) return;
    MutexLock lock(mutex_);
    if (++unanswered_ < kMostUnanswered && status.code() != ErrorCode::kUnavailable) return;
    proved_ = false;
    if (!silence_.ok()) return;
    telemetry::LogWarn("engine_silent", status, {{"model", context_.model}, {"engine", config_.name}});
    silence_ = status;
  }

  // Whether it serves what it was given, by what it says: one that cannot say is not believed after a silence.
  bool Believe(std::optional<bool> says) {
    MutexLock lock(mutex_);
    unanswered_ = 0;
    silence_ = OkStatus();
    proved_ = says.value_or(proved_);
    return proved_;
  }

  Result<size_t> Compare(const replica::PublishedVersion& version, std::span<const std::byte> data) {
    LS_RETURN_IF_ERROR(CheckComparable(version));
    Result<size_t> compared = targets_.Verify({version.held, version.layout, data});
    if (compared.status().code() == ErrorCode::kCorrupt) SetServed({});  // it is to load it again
    return compared;
  }

  void SetServed(const VersionRef& served) {
    {
      MutexLock lock(mutex_);
      if (std::exchange(served_, served) == served) return;
    }
    if (!driver_.notifies()) return;
    const Status marked = context_.replicas.MarkServed(config_.name, served);
    if (!marked.ok()) telemetry::LogWarn("served_version_record_failed", marked, {{"model", context_.model}});
  }

  const EngineContext& context_;
  const EngineConfig& config_;
  engines::EngineDriver& driver_;
  targets::EngineTargets& targets_;
  mutable Mutex mutex_;
  int unanswered_ LS_GUARDED_BY(mutex_) = 0;  // questions in a row
  Status silence_ LS_GUARDED_BY(mutex_);      // why it does not answer, where it does not
  bool proved_ LS_GUARDED_BY(mutex_);         // it took or named served_, and has answered ever since
  VersionRef served_ LS_GUARDED_BY(mutex_);   // that it was given and took
};

}  // namespace

std::unique_ptr<EngineRoute> NewDirectoryRoute(const EngineContext& context, const EngineConfig& config,
                                               engines::EngineDriver& driver, targets::EngineTargets& targets) {
  return std::make_unique<DirectoryRoute>(context, config, driver, targets);
}

}  // namespace lockstep::session
