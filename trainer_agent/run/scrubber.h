// Scrubber: hashes the newest version of each run again, a few blocks at a time, round after round. A slot that does
// not hold what its manifest says (written into after its commit, reported as unchanged and was not, bits lost) is
// found here and withdrawn, before receivers pull it in vain.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/scrub_pace.h"
#include "trainer_agent/run/version_catalog.h"

namespace lockstep::run {

// Has a thread of its own. Thread-safe.
class Scrubber {
 public:
  // `round`: for each run, as ScrubPace's; with 0 it looks at what is suspected only. REQUIRES the catalog to outlive
  // it.
  Scrubber(VersionCatalog* catalog, std::chrono::milliseconds round);
  ~Scrubber();

  // The peer `who` got bytes of `model` that do not have their hashes. The thread hashes all of the newest version at
  // once, but only for the first such call of each peer about a version. Calls with an empty `who` (a peer without a
  // certificate, or this daemon itself) always count.
  void Suspect(const std::string& model, const std::string& who);

 private:
  struct Look {  // at one run
    std::shared_ptr<ServedRun> run;
    ScrubPace pace;
    BlockIndex next = 0;
    uint32_t suspected = 0;  // blocks that are looked at without pause
    Version suspected_version = 0;
    std::set<std::string> suspected_by;  // the peers that suspected that version
  };

  void Run();
  void FindRuns();
  static void Heed(Look& look, const std::string& who);
  std::chrono::milliseconds LookAtAll();
  void LookAt(Look& look);

  VersionCatalog* const catalog_;
  const std::chrono::milliseconds round_;
  std::map<std::string, Look> looks_;  // by model; the thread's

  Mutex mutex_;
  std::condition_variable changed_;
  std::set<std::pair<std::string, std::string>> suspected_ LS_GUARDED_BY(mutex_);  // model, by which peer
  bool stopping_ LS_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lockstep::run
