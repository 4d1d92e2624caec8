// Requests: what the service's threads ask of a session's thread, and what they are answered.
//
// Requests of one kind are counted. The session's thread serves all that have come when it begins, and answers them
// together; one that comes meanwhile waits for the next turn.
#pragma once

#include <array>
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
  enum Kind : uint8_t {
    kPull,      // a sync
    kRollback,  // the previous version made current
    kVerify,    // a comparison of engines' memory with the current version
  };
  // Says that the caller has gone, so that nobody waits for the answer any more. Called now and then while waiting.
  using Cancelled = std::function<bool()>;

  // `changed` is notified of every request and every answer, and outlives this. `model` is for error messages.
  Requests(std::string model, ChangeSignal& changed) : model_(std::move(model)), changed_(changed) {}

  // --- the service's threads ---
  // One more of `kind`: its number. `force_full`: of a pull.
  uint64_t Post(Kind kind, bool force_full = false);
  // What became of it, of a pull with the sync's record. kCancelled after Stop, or when `cancelled` says so; kDeadline
  // after `timeout`. What was asked for is done all the same then, unless the session stops.
  Result<v1::SyncRecord> Await(Kind kind, uint64_t number, std::chrono::milliseconds timeout,
                               const Cancelled& cancelled);
  Result<v1::SyncRecord> Ask(Kind kind, std::chrono::milliseconds timeout, const Cancelled& cancelled,
                             bool force_full = false) {
    return Await(kind, Post(kind, force_full), timeout, cancelled);
  }
  // The end of the session.
  void Stop();

  // --- the session's thread ---
  // The requests that what begins now is to answer.
  struct Turn {
    uint64_t number = 0;
    bool force_full = false;  // some pull wants it
  };
  bool stopping() const;
  bool due(Kind kind) const;
  bool due(Kind kind, const Turn& begun) const;  // some that came after those

  Turn Begin(Kind kind);
  void End(Kind kind, const Turn& turn, const Status& outcome, const v1::SyncRecord& record = {});

 private:
  struct Counted {
    uint64_t asked = 0;       // so many so far
    uint64_t done = 0;        // of them, the first so many
    bool force_full = false;  // some that is due wants it
    Status outcome;           // of those done last
    v1::SyncRecord record;
  };
  using Answer = Result<v1::SyncRecord>;

  std::optional<Answer> AnswerTo(Kind kind, uint64_t number) const;

  const std::string model_;
  ChangeSignal& changed_;
  mutable std::mutex mutex_;
  bool stopping_ = false;
  std::array<Counted, 3> kinds_;
};

}  // namespace lockstep::session
