// The engines that lent one model's session their memory: groups of ranks, each brought to a version as one.
//
// Two phases. Prepare() works out the writes (and does them, where a group has two halves) while the engine serves.
// Commit() is the pause: hold, write, switch. All ranks of a group are at one version afterwards or at the one before;
// a group that cannot be brought to either stays held, and says so. Other groups are not concerned.
//
// Threads: ranks attach from the server's threads; Prepare and Commit are the session's. Attached ranks join their
// group between commits.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "common/model/layout.h"
#include "raas_receiver/placement/placement_plan.h"
#include "raas_receiver/replica/apply.h"

namespace lockstep {

struct EngineTargetsOptions {
  std::string model;
  std::chrono::milliseconds hold_timeout{30'000};   // for a rank's HELD
  std::chrono::milliseconds serve_timeout{30'000};  // for its SERVING
  uint64_t stage_bytes = uint64_t{1} << 30;         // memory for writes worked out beforehand
  // Called with a name at every step of FORMAT.md's table; tests die there.
  std::function<void(std::string_view step)> at_step;
};

// A whole version that the session holds, and how to come to it from older or newer ones.
struct TargetVersion {
  Held held;
  std::shared_ptr<const ModelLayout> layout;
  std::span<const std::byte> data;  // its data section; stays as it is during the call
};

// Deltas between two versions, in the order in which they were applied, or none when they are not at hand.
using DeltasBetween = std::function<DeltaChain(const Held& from, const Held& to)>;

struct EngineReport {  // of one group, for status and records
  std::string engine;
  uint32_t world = 0;
  uint32_t attached = 0;
  Held serving;        // nothing: no version yet, or a mix
  bool mixed = false;  // memory is neither of one version nor of another; ranks are held
  uint64_t parameters = 0;
  uint64_t target_bytes = 0;  // of all ranks, one half
  std::chrono::microseconds last_prepare{0};
  std::chrono::microseconds last_pause{0};  // from the first HOLD to the last SERVING
  uint64_t last_written_bytes = 0;
  uint64_t commits = 0;
  uint64_t failures = 0;
  std::string last_error;  // empty after a success
};

class RankLink;
class EngineGroup;

class EngineTargets {
 public:
  EngineTargets(EngineTargetsOptions options, WorkerPool& pool);
  ~EngineTargets();

  // Takes over a rank that has said ATTACH. It is answered ATTACHED or REFUSED when its group next is between commits.
  // `changed` (SetChanged) is called afterwards.
  void Attach(std::unique_ptr<RankLink> link);
  // Called, from any thread, when a rank came or went.
  void SetChanged(std::function<void()> changed);

  std::vector<EngineReport> Describe() const;
  // Ranks that are attached.
  bool empty() const;
  // Whether a complete group serves another version than `held`, or some rank waits to be answered. Incomplete groups
  // wait for their ranks.
  bool Behind(const Held& held) const;

  // --- the session's thread ---
  // Answers waiting ranks, compiles plans, and works out the writes that bring every complete group to `version`, which
  // it then holds for Commit. An error is of the first group that failed; the others are prepared all the same.
  Status Prepare(const TargetVersion& version, const DeltasBetween& deltas);
  // Whether there is anything to commit.
  bool prepared() const;
  // Brings the prepared groups to the version. `before` (nothing: it is not at hand) is what to go back to. Groups that
  // fail keep or regain the version before; the first one's error is answered.
  Status Commit(const TargetVersion& version, const std::optional<TargetVersion>& before, const DeltasBetween& deltas);
  // What Prepare worked out is dropped.
  void Abandon();
  // Compares every complete group's memory with `version`, which it says it serves. kCorrupt names the engine and rank.
  Status Verify(const TargetVersion& version);

 private:
  const EngineTargetsOptions options_;
  WorkerPool& pool_;
  mutable std::mutex mutex_;
  std::function<void()> changed_;
  std::vector<std::unique_ptr<RankLink>> waiting_;
  std::map<std::string, std::unique_ptr<EngineGroup>> groups_;  // by engine name
};

}  // namespace lockstep
