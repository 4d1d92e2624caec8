// EngineDriver: how an inference server is notified of versions. One for each kind of server (driver_kind.h), and two
// routes:
//
//   directory   Load(): the server reads the published directory by itself
//   in place    Pause(), then its memory is written (raas_receiver/engine/ranks), then Resume()
//
// Every answer of a server is checked. An error says what it does not do; Serving says what it serves all the same.
// What an answer covers is the server's: SGLang's is that of its first replica's rank 0 alone (drivers.h).
//
// Cancel, failures and what is const may be called by any thread; everything else by one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/base/text.h"
#include "raas_receiver/engine/drivers/driver_kind.h"

namespace lockstep::engine {

// A whole version as an engine is notified of it.
struct EngineVersion {
  std::string model;
  VersionRef held;
  std::string path;        // the published directory, absolute
  std::string mode;        // how it came: "full", "delta", "rollback", "recovered", ...
  std::string label = {};  // what its trainer calls it; empty: nothing
};

enum class Serving : uint8_t {
  kNew,       // the version it was notified of
  kOld,       // what it served before: nothing was changed
  kLastGood,  // the version before, loaded again after a failure
  kUnknown,   // perhaps a mix: do not route requests to it
};

struct LoadOutcome {
  Status status;  // OK goes with kNew, an error with everything else
  Serving serving = Serving::kUnknown;
};

class EngineDriver {
 public:
  // `kind` outlives this. `where`: what it calls.
  explicit EngineDriver(const DriverKind& kind, std::string where = {}) : kind_(kind), where_(std::move(where)) {}
  virtual ~EngineDriver() = default;

  virtual std::string_view kind() const { return kind_.name; }
  const std::string& where() const { return where_; }
  // For sentences: "vllm at http://127.0.0.1:8000".
  std::string label() const { return where_.empty() ? std::string(kind()) : Cat(kind(), " at ", where_); }
  // As DriverKind has them.
  bool notifies() const { return kind_.notifies; }
  bool controls_server() const { return kind_.controls_server; }

  // Makes the server load `version` from its directory; blocks until it serves it or all attempts failed. After a
  // failure that may have left parts of it, `last_good` (nothing: there is none) is loaded again; without that, or when
  // that fails too, the server stays paused (kUnknown). kCancelled after Cancel(), unless the version was read by
  // then.
  virtual LoadOutcome Load(const EngineVersion& version, const std::optional<EngineVersion>& last_good) = 0;

  // Pauses the server at a boundary, for its memory to be written: nothing runs on its devices any more. After an error
  // it runs, or is made to, unless its memory may be a mix already.
  virtual Status Pause(const EngineVersion& version) = 0;
  // Says that its memory holds `serving`, whole: the server drops what it computed with older weights, takes the
  // version's name where it can keep one, and resumes. Tried again until the attempts are used up; then it stays
  // paused, and Resume may be called again. Without it, only a Load makes a paused server run. With `serving.held`
  // nothing, nothing was written: the server resumes with what it had, under the name that it had. After Cancel() it is
  // still tried, for a few seconds.
  virtual Status Resume(const EngineVersion& serving) = 0;

  // Whether the server says that it serves `version`, by the name that Load or Resume gave it. False: it was restarted,
  // or its weights were changed from elsewhere; the next Load or Pause finds out what state it is in. Nothing where a
  // server cannot say, or may not be asked; an error when it does not answer, as Answers. It is not paused for this: it
  // is asked once, which takes 5 s at most, and is no failure.
  virtual Result<std::optional<bool>> StillServes(const EngineVersion& version) = 0;

  // OK: the server answers a question, and has started; it is asked once, which takes 5 s at most. Also where there is
  // none to be asked. kUnavailable: it took no connection, or is starting.
  virtual Status Answers() { return OkStatus(); }

  // What the ranks of the server that are attached anywhere call their start (ATTACH's `incarnation`), one for each
  // that answers. An error when it does not answer, or has none.
  virtual Result<std::vector<std::string>> Incarnations() {
    return Status(ErrorCode::kState, Cat(label(), " has no ranks that can be asked"));
  }

  // Cancels the call under way; everything later is kCancelled, but for Resume, until Reset. A server that was paused
  // is resumed all the same, for a few seconds, when it holds one whole version: nothing was changed yet, or all was
  // read.
  virtual void Cancel() = 0;
  // From now on a call under way is cancelled, as by Cancel, when the peer of one of these sockets hangs up. They stay
  // open until others replace them.
  virtual void CancelAtHangUp(std::vector<int> /*sockets*/) {}
  // Calls are taken again after Cancel. REQUIRES that none is under way.
  virtual void Reset() = 0;

  // Attempts that failed. One at a server that takes no connection is the last of its call.
  virtual uint64_t failures() const = 0;

 private:
  const DriverKind& kind_;
  const std::string where_;
};

// The longest wait between two attempts.
inline constexpr std::chrono::seconds kLongestBackoff{10};

}  // namespace lockstep::engine
