// What a receiver finds in its directory when it starts: two replicas, proved by hashing them, and which one is
// current.
#pragma once

#include <array>
#include <optional>
#include <string>

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

struct ReplicasAtStart {
  std::array<Replica, 2> replicas;
  int current = -1;  // -1: neither is whole
};

// Loads both replicas of `directory`. Removes a replica and its state when it lacks the hashes that the state claims.
// Publishes whole versions, and withdraws all else that `tree` shows. `current` then names a whole version, or is gone.
Result<ReplicasAtStart> RecoverReplicas(const ReplicaDirectory& directory, VersionTree& tree, WorkerPool& pool);

}  // namespace lockstep::replica
