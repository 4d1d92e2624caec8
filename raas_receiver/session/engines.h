// Engines: the table of a session's engines, each of which is brought to the current version by itself.
//
// Ranks find their engine by its name. Those of another one make it, where that is admitted; it is forgotten an hour
// after the last of them went.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "raas_receiver/session/engine.h"

namespace lockstep::session {

// Whether ranks may make engines that are not in the table.
struct EngineAdmission {
  bool open = false;                                 // any that stop their readers themselves may
  std::vector<std::pair<uint16_t, uint16_t>> ports;  // of servers on loopback, first and last: their ranks may
  EngineConfig config;                               // of such engines, but for the name
  engines::EngineOptions driver;                     // of a server, but for its URL
};

struct EngineEntry {
  EngineConfig config;
  std::unique_ptr<engines::EngineDriver> driver;
};

class Engines {
 public:
  // `context` outlives this. REQUIRES an entry in the table.
  Engines(const EngineContext& context, std::vector<EngineEntry> table, EngineAdmission admission);

  // --- any thread ---
  // Where a rank of that engine attaches. kNotFound names those that there are; kPermission: its server may not come.
  Result<std::shared_ptr<targets::EngineTargets>> Find(const targets::RankConnection& link);
  // Whether all serve some version, or none is notified. An engine that ranks made counts while it has some.
  bool Serve() const;
  // What the engine serves that serves the oldest version of the current run; nothing: one serves nothing of it.
  VersionRef served() const;
  // What has not taken which version for how long, of an attempt that is late. Empty: none is.
  std::string LateAttempt() const;
  // Fills in what a status says of engines.
  void Describe(v1::ReceiverModel& model) const;
  // Adds which engines Verify passes over, for they have no ranks.
  void DescribeUncompared(v1::VerifyResult& result) const;
  void Cancel();
  bool HaveRanks() const;

  // --- the session's thread ---
  // Whether some engine is, as after a receiver that was killed between commit and engine.
  bool Behind() const;
  bool Due() const;
  std::chrono::milliseconds UntilDue() const;
  void Check();
  enum class Which {
    kDue,
    kBehind,  // also engines that are behind and not due yet, unless they are late
    kAll,     // late ones, too
  };
  // Begins attempts. Engines that have one under way are left alone.
  void Begin(const std::string& mode, uint64_t transfer, Which which);
  bool under_way() const;  // at any
  bool ended() const;      // at any
  bool ReadPrevious() const;
  void GiveWay();
  bool MayGiveWay() const;
  void Interrupt();
  // Takes the attempts that have ended.
  void Take(const std::function<void(const Engine& engine, const EngineOutcome& outcome)>& use);
  // Waits until one has ended, if any is under way.
  void AwaitOne(ChangeSignal& changed) const;
  // As Engine::Verify, of all with ranks: how many groups there are, or the first error.
  Result<size_t> Verify();
  void Doubt(const VersionRef& damaged);
  // Those that do not serve the current version and are not late.
  std::vector<std::shared_ptr<const Engine>> Waiting() const;

 private:
  using All = std::vector<std::shared_ptr<Engine>>;
  All all() const;
  All counted() const;
  bool Any(bool (Engine::*is)() const) const;

  Result<std::shared_ptr<targets::EngineTargets>> Make(const targets::RankConnection& link) LS_REQUIRES(mutex_);
  std::shared_ptr<Engine> EngineAt(const std::string& url) const LS_REQUIRES(mutex_);
  bool MakeRoom() LS_REQUIRES(mutex_);
  Status CheckServer(const targets::RankConnection& link) const;
  void Forget();

  const EngineContext& context_;
  const EngineAdmission admission_;
  mutable Mutex mutex_;
  All engines_ LS_GUARDED_BY(mutex_);  // the table's first
  const size_t in_table_;
  std::map<const Engine*, std::chrono::steady_clock::time_point> left_
      LS_GUARDED_BY(mutex_);  // since when one that ranks made has none
};

}  // namespace lockstep::session
