// What EngineRanks gets and tells.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "common/payload/payload.h"
#include "raas_receiver/engine/placement/writes/write_batch.h"
#include "raas_receiver/engine/ranks/messages.h"

namespace lockstep::engine {

struct EngineRanksOptions {
  std::string model;
  std::string engine = "default";                   // as the receiver calls it
  std::chrono::milliseconds pause_timeout{30'000};  // for all ranks' PAUSED, and for each answer to a write batch
  std::chrono::milliseconds serve_timeout{30'000};  // for all ranks' SERVING
  uint64_t stage_bytes = uint64_t{1} << 30;         // memory for writes worked out beforehand
  uint64_t batch_bytes = kMaxWriteBatchBytes;       // that a rank gets at a time
  size_t threads = 2;  // of one commit, beside its caller's: they make writes and wait for ranks to take them
  // Within this time a rank that has lost its connection attaches again: it tries once a second at least.
  std::chrono::milliseconds comes_back{2'500};
  // Asks the server that is paused around commits for its ranks' incarnations: of the ranks that have no gate, its own
  // may attach. Null: none is paused.
  std::function<Result<std::vector<std::string>>()> paused_server;
  // Engines get versions by another way: ranks may attach that compare their memory, and no others.
  bool compare_only = false;
  // Whether what is under way is not wanted any more: no other receiver is waited for then. Null: it always is.
  std::function<bool()> cancelled;
  // Called with a name at every step of a commit: "prepared", "paused", "written", "serve" (before each rank's),
  // "serving". Tests die there.
  std::function<void(std::string_view step)> at_step;
};

// A whole version that the session holds.
struct VersionData {
  VersionRef held;
  std::shared_ptr<const model::ModelLayout> layout;
  std::span<const std::byte> data;  // its data section
  std::string label = {};           // what its trainer calls it; empty: nothing
};

// The deltas between two versions, whichever is older, in the order in which they were applied; none when not all
// are kept.
using DeltasBetween = std::function<payload::DeltaChain(const VersionRef& from, const VersionRef& to)>;

// What groups are to be brought to: `version`, by `deltas` between what ranks hold. `before` (nothing: it is not at
// hand) is what they may still read.
struct CommitRequest {
  VersionData version;
  std::optional<VersionData> before;
  DeltasBetween deltas;
};

struct RankGroupReport {  // for status and records
  std::string name;
  uint32_t world = 0;  // that attach to this receiver
  uint32_t attached = 0;
  int64_t attached_since_unix_ns = 0;  // so many
  std::vector<VersionRef> reads;       // what each rank that is there reads; nothing: it does not
  uint32_t waiting = 0;             // of those that are there: for the first version, or for one that makes them whole
  uint32_t asleep = 0;              // of those that are there
  uint32_t comparing = 0;           // of those that are there
  VersionRef at;                    // what all of its ranks are there and wholly at; nothing: not all are
  std::vector<std::string> unused;  // tensors of the model that no rank takes
  std::string plan_digest;          // 16 bytes: where the model's bytes are in their memory; empty: not worked out yet
  uint64_t parameters = 0;          // of all ranks
  uint64_t target_bytes = 0;        // of all ranks
  std::chrono::microseconds last_prepare{0};
  std::chrono::microseconds last_pause{0};  // from the first PAUSE to the last SERVING
  uint64_t last_written_bytes = 0;          // by the last commit
  uint64_t commits = 0;
  uint64_t failures = 0;
  std::string last_error;  // empty after a success
  // What the engine's other receivers said last, where they had not come as far.
  std::optional<Agreement> apart;

  // What all ranks that are there read; nothing: not all do, or not the same.
  VersionRef serving() const {
    const bool same =
        std::all_of(reads.begin(), reads.end(), [&](const VersionRef& held) { return held == reads.front(); });
    return same && !reads.empty() ? reads.front() : VersionRef();
  }
};

}  // namespace lockstep::engine
