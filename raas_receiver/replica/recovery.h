// Recovery: finds the two replicas in a receiver's directory when it starts, proves them by hashing, and decides which
// one is current.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "raas_receiver/replica/replica_directory.h"
#include "raas_receiver/replica/replica_file.h"
#include "raas_receiver/replica/state_file.h"
#include "raas_receiver/replica/tree.h"

namespace lockstep::replica {

struct Replica {
  std::string path;
  std::string state_path;
  ReplicaFile file;
  std::optional<ReplicaState> whole;  // none: the bytes are no version
  std::string name;                   // its published directory; empty: it is not published
};

// Blocks of a replica that do not have their hashes.
struct Damage {
  VersionRef held;                 // what the replica holds, or held
  std::vector<BlockIndex> blocks;  // rising; empty: it is not known which
  std::string_view by;             // who found it: a log's field
  Status what;                     // kCorrupt
};

struct ReplicasAtStart {
  std::array<Replica, 2> replicas;
  int current = -1;  // -1: neither is whole
  std::vector<Damage> damage;
};

// Loads both replicas of `directory`. Removes a replica and its state when it lacks the hashes that the state claims,
// and before them the notes that an engine serves that version: it may have read what is wrong. Publishes whole
// versions, and withdraws all else that `tree` shows. `current` then names a whole version, or is gone.
Result<ReplicasAtStart> RecoverReplicas(const ReplicaDirectory& directory, VersionTree& tree, WorkerPool& pool);

}  // namespace lockstep::replica
