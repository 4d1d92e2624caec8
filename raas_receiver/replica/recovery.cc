#include "raas_receiver/replica/recovery.h"

#include <unistd.h>

#include <algorithm>

#include "common/base/text.h"
#include "raas_receiver/replica/apply.h"

namespace lockstep::replica {
namespace {

// The replica that the state claims; an error, and the blocks that differ, say why the claim does not hold.
Result<ReplicaFile> Prove(const ReplicaState& state, const std::string& path, WorkerPool& pool,
                          std::vector<BlockIndex>& differing) {
  LS_ASSIGN_OR_RETURN(ReplicaFile file, ReplicaFile::Open(path, state.layout));
  differing = Differing(HashBlocks(*state.layout, file.data(), pool), state.manifest.block_hashes);
  if (differing.empty()) return file;
  return Status(ErrorCode::kCorrupt, Cat(path, " does not have the hashes of version ", state.manifest.held.version));
}

// A replica that was found damaged; none where there simply is none.
Result<std::optional<Damage>> Load(const ReplicaDirectory& directory, Replica& replica, WorkerPool& pool) {
  Result<ReplicaState> state = ReadReplicaState(replica.state_path);
  Damage damage{.held = state.ok() ? state->manifest.held : VersionRef(), .blocks = {}, .by = "start", .what = {}};
  Result<ReplicaFile> file =
      state.ok() ? Prove(*state, replica.path, pool, damage.blocks) : Result<ReplicaFile>(state.status());
  if (file.ok()) {
    replica.file = *std::move(file);
    replica.whole = *std::move(state);
    return std::optional<Damage>();
  }
  const bool corrupt = file.status().code() == ErrorCode::kCorrupt;
  if (corrupt) LS_RETURN_IF_ERROR(directory.ForgetServed(damage.held));
  ::unlink(replica.state_path.c_str());
  ::unlink(replica.path.c_str());
  if (!corrupt) return std::optional<Damage>();
  damage.what = file.status();
  return std::optional(std::move(damage));
}

// Finds `replica` among the published `names`, or publishes it. `taken` is the other replica's name.
Status Publish(Replica& replica, const std::vector<std::string>& names, const std::string& taken, VersionTree& tree) {
  if (!replica.whole) return OkStatus();
  const auto found = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
    return tree.Publishes(name, replica.path, *replica.whole);
  });
  if (found != names.end()) {
    replica.name = *found;
    return tree.LinkAssets(replica.name);
  }
  const std::string name = VersionTree::NameFor(replica.whole->manifest.held, taken);
  LS_RETURN_IF_ERROR(tree.Publish(name, replica.path, *replica.whole));
  replica.name = name;
  return OkStatus();
}

// Versions of two runs cannot be compared; the trainer's clock has to do.
bool Newer(const ReplicaState& a, const ReplicaState& b) {
  if (a.manifest.held.run == b.manifest.held.run) return a.manifest.held.version > b.manifest.held.version;
  return a.committed_unix_ns > b.committed_unix_ns;
}

// The one that the link `named`, if it is whole; else the newest.
int ChooseCurrent(const std::array<Replica, 2>& replicas, const std::string& named) {
  const auto& [first, second] = replicas;
  if (!first.whole && !second.whole) return -1;
  if (!first.whole || !second.whole) return first.whole ? 0 : 1;
  if (named == first.name || named == second.name) return named == first.name ? 0 : 1;
  return Newer(*second.whole, *first.whole) ? 1 : 0;
}

}  // namespace

Result<ReplicasAtStart> RecoverReplicas(const ReplicaDirectory& directory, VersionTree& tree, WorkerPool& pool) {
  ReplicasAtStart found;
  auto& [replicas, current, damage] = found;
  for (size_t i : {0, 1}) {
    replicas[i].path = directory.ReplicaPath(i);
    replicas[i].state_path = directory.StatePath(i);
    LS_ASSIGN_OR_RETURN(std::optional<Damage> lacks, Load(directory, replicas[i], pool));
    if (lacks) damage.push_back(*std::move(lacks));
  }
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> names, tree.Names());
  for (size_t i : {0, 1}) LS_RETURN_IF_ERROR(Publish(replicas[i], names, replicas[1 - i].name, tree));
  for (const std::string& name : names) {
    if (name != replicas[0].name && name != replicas[1].name) LS_RETURN_IF_ERROR(tree.Withdraw(name));
  }
  const std::string named = tree.CurrentName();
  current = ChooseCurrent(replicas, named);
  if (current < 0) {
    LS_RETURN_IF_ERROR(tree.RemoveCurrent());
  } else if (replicas[current].name != named) {
    LS_RETURN_IF_ERROR(tree.SwitchCurrent(replicas[current].name));
  }
  return found;
}

}  // namespace lockstep::replica
