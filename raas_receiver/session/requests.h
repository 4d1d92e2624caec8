// Requests: what the service's threads ask of a session's thread, and what they are answered.
//
// Requests of one kind are counted. The session's thread serves all that have come when it begins, and answers them
// together; one that comes meanwhile waits for the next turn.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "proto/lockstep/v1/receiver.pb.h"
#include "raas_receiver/session/change_signal.h"

namespace lockstep::session {

// Thread-safe.
class Requests {
 public:
  // Says that the caller has gone, so that nobody waits for the answer any more. Called now and then while waiting.
  using Cancelled = std::function<bool()>;

  // `changed` is notified of every request and every answer, and outlives this. `model` is for error messages.
  Requests(std::string model, ChangeSignal& changed) : model_(std::move(model)), changed_(changed) {}

  // --- the service's threads ---
  // All of them: kCancelled after Stop, or when `cancelled` says so; kDeadline after `timeout`. What was asked for is
  // done all the same then, unless the session stops.

  // A sync; answers what became of it.
  Result<v1::SyncRecord> Pull(bool force_full, std::chrono::milliseconds timeout, const Cancelled& cancelled);
  // The previous version made current.
  Status Rollback(std::chrono::milliseconds timeout, const Cancelled& cancelled);
  // A comparison of engines' memory with the current version.
  Status Verify(std::chrono::milliseconds timeout, const Cancelled& cancelled);
  // The end of the session.
  void Stop();

  // --- the session's thread ---
  bool stopping() const;
  bool pull_due() const { return Due(pull_); }
  bool rollback_due() const { return Due(rollback_); }
  bool verify_due() const { return Due(verify_); }

  // The pulls that the sync which begins now is to answer.
  struct Pulls {
    uint64_t number = 0;
    bool force_full = false;
  };
  Pulls BeginPulls();
  void EndPulls(const Pulls& pulls, const Status& outcome, const v1::SyncRecord& record);
  // A rollback answers also those that came while it ran: they asked for the same version.
  void EndRollbacks(const Status& outcome);
  uint64_t BeginVerifies();
  void EndVerifies(uint64_t number, const Status& outcome);

 private:
  struct Kind {
    uint64_t asked = 0;     // so many so far
    uint64_t done = 0;      // of them, the first so many
    Status outcome;         // of those done last
    v1::SyncRecord record;  // of the sync that answered them; of other kinds it stays empty
  };
  using Answer = Result<v1::SyncRecord>;

  // One more of `kind`, waited for. `force_full`: of pulls.
  Answer Ask(Kind& kind, std::chrono::milliseconds timeout, const Cancelled& cancelled, bool force_full = false);
  std::optional<Answer> AnswerTo(const Kind& kind, uint64_t number) const;
  bool Due(const Kind& kind) const;
  void End(Kind& kind, uint64_t number, const Status& outcome, const v1::SyncRecord& record = {});

  const std::string model_;
  ChangeSignal& changed_;
  mutable std::mutex mutex_;
  bool stopping_ = false;
  bool force_full_ = false;  // some pull that is due wants it
  Kind pull_;
  Kind rollback_;
  Kind verify_;
};

}  // namespace lockstep::session
