// EngineRoute: how a version gets into one engine, and what is known of that. Two ways:
//
//   directory   the driver makes the server load the published directory
//   in place    its ranks write their memory: prepared while they serve, then pause, write, resume
//
// An Engine decides when, and has a thread for it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/base/text.h"
#include "common/telemetry/timeline.h"
#include "raas_receiver/engines/driver.h"
#include "raas_receiver/replica/replica_pair.h"
#include "raas_receiver/session/change_signal.h"
#include "raas_receiver/targets/engine_targets.h"

namespace lockstep::session {

// What the engines of a session share. It outlives them.
struct EngineContext {
  std::string model;
  replica::ReplicaPair& replicas;
  size_t engine_threads = 2;                // that write into the ranks of each engine in place
  telemetry::Timeline* timeline = nullptr;  // null: no spans
  ChangeSignal& changed;                    // notified of ranks that come and go, and of attempts that end
};

struct EngineConfig {
  std::string name = "default";
  bool in_place = false;
  bool made = false;                        // by its ranks; it is in no configuration
  std::chrono::milliseconds late_after{0};  // an engine that is behind for so long is late; 0: none is
  targets::EngineTargetsOptions targets;    // but for the model and the server
};

// A version as a server is told of it, and as ranks are written. Its data stays as it is while readers may be there.
struct EngineVersions {
  engines::EngineVersion version;
  targets::TargetVersion data;
};

// What an engine is given: the current version, and the other replica's, where that holds one.
struct EngineAttempt {
  uint64_t number = 0;   // rises with each version that is made current
  bool at_once = false;  // an operator's: whatever engines do, and although they rest
  EngineVersions current;
  std::optional<EngineVersions> before;
  uint64_t transfer = 0;  // the pull that `current` came by; 0: none
};

// How an attempt went.
struct EngineOutcome {
  Status status;          // why the engine does not serve `version`
  uint64_t number = 0;    // of the version that it was to serve
  VersionRef version;     // that version
  VersionRef served;      // by the directory: what it serves now; nothing: nothing, or unknown
  bool reverted = false;  // it could not load `version`, and loaded the one before again
  bool doubted = false;   // what it took may not be what it is called: it is to take it again
  uint64_t total_us = 0;
  uint64_t prepare_us = 0;
  uint64_t pause_us = 0;
  uint64_t written_bytes = 0;
};

// kState for what no memory is to be compared with: no version, or one that is damaged.
inline Status CheckComparable(const replica::PublishedVersion& version) {
  if (version.held.nothing()) return {ErrorCode::kState, "no version is held"};
  if (!version.damaged) return OkStatus();
  return {ErrorCode::kState, Cat("version ", version.held.version, " was found damaged: it is compared with nothing")};
}

class EngineRoute {
 public:
  virtual ~EngineRoute() = default;

  // --- any thread ---
  // Nothing: nothing, or unknown, as of a server that does not answer.
  virtual VersionRef served() const = 0;
  // Why it can be given nothing now: its server does not answer.
  virtual Status Trouble() const = 0;
  // Whether the engine lacks `current`, and can be given it. Never where no engine is notified.
  virtual bool Behind(const VersionRef& current) const = 0;
  // Whether the attempt under way has come to the pause, which it never has by the directory.
  virtual bool Paused() const = 0;
  // Whether the attempt under way reads the data of the version before, or its server may be made to return to it.
  virtual bool AttemptReadsBefore() const = 0;
  // Whether ranks read `previous`, or may, and others of their engine may have to be brought to it.
  virtual bool RanksRead(const VersionRef& previous) const = 0;

  // --- the engine's thread ---
  virtual EngineOutcome Serve(const EngineAttempt& attempt) = 0;
  // Answers ranks that came to compare, and asks the server whether it still serves what it was given. False: it does
  // not; an error: it does not answer.
  virtual Result<bool> Check() = 0;
  // As EngineTargets::Verify, with what the engine is to serve; kState also when that is unknown, or it is
  // not held any more.
  virtual Result<size_t> Verify() = 0;

  // An attempt has ended so.
  virtual void Took(const EngineOutcome& outcome) = 0;
  // The replica that held `damaged` lacks some hash of it; nothing: any replica may. Where the engine may have been
  // given its bytes, it is not known any more to serve what it served, and is behind: memory in place is compared by
  // the next attempt, and written where it differs. By the directory also any thread.
  virtual void Doubt(const VersionRef& damaged) = 0;
};

// All that is given outlives the route.
std::unique_ptr<EngineRoute> NewDirectoryRoute(const EngineContext& context, const EngineConfig& config,
                                               engines::EngineDriver& driver, targets::EngineTargets& targets);
std::unique_ptr<EngineRoute> NewInPlaceRoute(const EngineContext& context, engines::EngineDriver& driver,
                                             targets::EngineTargets& targets);

}  // namespace lockstep::session
