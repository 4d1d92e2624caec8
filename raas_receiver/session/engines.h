// Engines: the table of a session's engines, each of which is brought to the current version by itself.
//
// Ranks find their engine by its name. Where no engine is named in the table, those that are written in place make one
// of each name that they come with.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "raas_receiver/session/engine.h"

namespace lockstep::session {

struct EngineEntry {
  EngineConfig config;
  std::unique_ptr<engines::EngineDriver> driver;
};

class Engines {
 public:
  // `context` outlives this. `open`: ranks that are written in place may come with names that are not in the table; the
  // engines they make are configured as the first entry, which then is of kind "none".
  Engines(const EngineContext& context, std::vector<EngineEntry> table, bool open);

  // --- any thread ---
  // Where a rank of that engine attaches. kNotFound names those that there are.
  Result<targets::EngineTargets*> Find(const targets::RankLink& link);
  // Whether all serve some version, or nobody is notified. An engine that ranks made counts while it has some.
  bool Serve() const;
  // What the engine serves that serves the oldest version of the current run; nothing: one serves nothing of it.
  Held served() const;
  // What has not taken which version for how long, of an attempt that is late. Empty: none is.
  std::string Late() const;
  // Fills in what a status says of engines.
  void Describe(v1::ReceiverModel& model) const;
  void Cancel();
  bool HaveRanks() const;

  // --- the session's thread ---
  bool Behind() const;
  // Whether a receiver that was killed between commit and engine left a version to be served.
  bool OweVersion() const;
  bool Due() const;
  std::chrono::milliseconds UntilDue() const;
  void Check();
  struct Begun {
    bool all = false;        // also those that are behind, not late, and not due yet
    bool may_return = true;  // engines may be made to return to the version before
  };
  // Begins an attempt at each engine that is due. Those that have one under way are left alone.
  void Begin(const std::string& mode, uint64_t transfer, const Begun& which);
  bool under_way() const;  // at any
  bool ended() const;      // at any
  bool ReadPrevious() const;
  void GiveWay();
  void Interrupt();
  // Takes the attempts that have ended.
  void Take(const std::function<void(const Engine& engine, const EngineOutcome& outcome)>& use);
  // Waits until one has ended, if any is under way.
  void AwaitOne(ChangeSignal& changed) const;
  // As Engine::Verify, of all with ranks: how many groups there are, or the first error.
  Result<size_t> Verify();
  void Distrust();
  // Those that do not serve the current version and are not late.
  std::vector<const Engine*> Waiting() const;

 private:
  using All = std::vector<std::shared_ptr<Engine>>;
  All all() const;
  All counted() const;
  bool Any(bool (Engine::*is)() const) const;

  const EngineContext& context_;
  const bool open_;
  mutable std::mutex mutex_;
  All engines_;  // guarded by mutex_; the table's first
  size_t in_table_ = 0;
};

}  // namespace lockstep::session
