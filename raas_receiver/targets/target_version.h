// What a session gives to and gets from the engines that are kept at a version in place.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "common/base/ids.h"
#include "common/model/layout.h"
#include "raas_receiver/placement/writes/portion.h"
#include "raas_receiver/replica/apply.h"

namespace lockstep::targets {

struct EngineTargetsOptions {
  std::string model;
  std::chrono::milliseconds hold_timeout{30'000};        // for all ranks' HELD, and for each answer to a portion
  std::chrono::milliseconds serve_timeout{30'000};       // for all ranks' SERVING
  uint64_t stage_bytes = uint64_t{1} << 30;              // memory for writes worked out beforehand
  uint64_t portion_bytes = placement::kMaxPortionBytes;  // that a rank gets at a time
  // The engine name of the server that is paused around commits: of the ranks that have no gate, its own may attach.
  // Empty: none is paused.
  std::string paused_server;
  // Called with a name at every step of a commit: "prepared", "held", "writing", "written", "committed", "serving".
  // Tests die there.
  std::function<void(std::string_view step)> at_step;
};

// A whole version that the session holds.
struct TargetVersion {
  Held held;
  std::shared_ptr<const model::ModelLayout> layout;
  std::span<const std::byte> data;  // its data section
  std::string label = {};           // what its trainer calls it; empty: nothing
};

// The deltas between two versions, whichever is older, in the order in which they were applied; none when they are not
// at hand.
using DeltasBetween = std::function<payload::DeltaChain(const Held& from, const Held& to)>;

struct EngineReport {  // of one group, for status and records
  std::string engine;
  uint32_t world = 0;
  uint32_t attached = 0;
  Held serving;               // nothing: no version yet, or a mix
  Held at;                    // what all of its ranks are there and wholly at; nothing: not all are
  bool mixed = false;         // memory is neither of one version nor of another; ranks are held
  uint64_t parameters = 0;    // of all ranks
  uint64_t target_bytes = 0;  // of all ranks
  std::chrono::microseconds last_prepare{0};
  std::chrono::microseconds last_pause{0};  // from the first HOLD to the last SERVING
  uint64_t last_written_bytes = 0;          // by the last commit
  uint64_t commits = 0;
  uint64_t failures = 0;
  std::string last_error;  // empty after a success
};

}  // namespace lockstep::targets
