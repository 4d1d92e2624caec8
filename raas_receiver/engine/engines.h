// Engines: the table of a session's engines, each of which is brought to the current version by itself.
//
// Ranks find their engine by its name. Those of another one make it, where that is admitted; it is forgotten an hour
// after the last of them went.
#pragma once

#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "raas_receiver/engine/engine.h"

namespace lockstep::engine {

// Whether ranks may make engines that are not in the table.
struct EngineAdmission {
  bool open = false;                                 // any that stop their readers themselves may
  std::vector<std::pair<uint16_t, uint16_t>> ports;  // of servers on loopback, first and last: their ranks may
  EngineConfig config;                               // of such engines, but for the name
  EngineOptions driver;                              // of a server, but for its URL
};

struct EngineEntry {
  EngineConfig config;
  std::unique_ptr<EngineDriver> driver;
};

class Engines {
 public:
  // `context` outlives this. REQUIRES an entry in the table.
  Engines(const EngineContext& context, std::vector<EngineEntry> table, EngineAdmission admission);

  // --- any thread ---
  // Where a rank of that engine attaches. kNotFound names those that there are; kPermission: its server may not come.
  Result<std::shared_ptr<EngineRanks>> Find(const RankConnection& link);
  // Whether all serve some version, or none is notified. An engine that ranks made counts while it has some.
  bool Serve() const;
  // What the engine serves that serves the oldest version of the current run; nothing: one serves nothing of it.
  VersionRef served() const;
  // What has not taken which version for how long, of an attempt that is late. Empty: none is.
  std::string LateAttempt() const;
  // Fills in what a status says of engines.
  void Describe(v1::ReceiverModel& model) const;
  // As Engine::NoteServing, of all.
  void NoteServing();
  // Adds which engines Verify passes over, for they have no ranks.
  void DescribeUncompared(v1::VerifyResult& result) const;
  void Cancel();
  bool HaveRanks() const;
  bool under_way() const;  // an attempt, at any
  // As Engine::Verify, of all with ranks.
  std::vector<std::future<Result<size_t>>> Verify();

  // --- the session's thread ---
  // Forgets the engines that are to be forgotten.
  void Tend();
  // As Engine::Give, of what the replicas hold; of nothing, while the current version is damaged. It came by `mode` and
  // pull `transfer`; 0: by none.
  void Give(uint64_t number, const std::string& mode, uint64_t transfer, bool at_once);
  // Gives them nothing any more.
  void GiveNothing();
  // As Engine::TakeBack, of all of them. Those that are late give way, if they are to.
  bool TakeBack(bool late_give_way = true);
  void Doubt(const VersionRef& damaged);
  // Those that do not serve the current version, or have an attempt under way.
  std::vector<std::shared_ptr<const Engine>> Waiting() const;
  // The first Engine::NextChange.
  std::chrono::steady_clock::time_point NextChange() const;

 private:
  using All = std::vector<std::shared_ptr<Engine>>;
  All all() const;
  All counted() const;

  Result<std::shared_ptr<EngineRanks>> Join(const RankConnection& link, const std::shared_ptr<Engine>& same)
      LS_REQUIRES(mutex_);
  Result<std::shared_ptr<EngineRanks>> Make(const RankConnection& link) LS_REQUIRES(mutex_);
  std::shared_ptr<Engine> EngineAt(const std::string& url) const LS_REQUIRES(mutex_);
  bool MakeRoom() LS_REQUIRES(mutex_);
  Status CheckServer(const RankConnection& link) const;

  const EngineContext& context_;
  const EngineAdmission admission_;
  mutable Mutex mutex_;
  All engines_ LS_GUARDED_BY(mutex_);  // the table's first
  const size_t in_table_;
  std::map<const Engine*, std::chrono::steady_clock::time_point> left_
      LS_GUARDED_BY(mutex_);  // since when one that ranks made has none
};

}  // namespace lockstep::engine
