#include "raas_receiver/replica/replica_pair.h"

#include <unistd.h>

#include <algorithm>

#include "common/base/text.h"
#include "common/model/model_name.h"

namespace lockstep::replica {

Result<std::unique_ptr<ReplicaPair>> ReplicaPair::Open(ReplicaOptions options, WorkerPool& pool) {
  LS_RETURN_IF_ERROR(model::CheckModelName(options.model));
  LS_ASSIGN_OR_RETURN(ReplicaDirectory directory, ReplicaDirectory::Open(options.root, options.model));
  VersionTree tree(directory.path(), directory.scratch(), options.assets);
  LS_ASSIGN_OR_RETURN(ReplicasAtStart start, RecoverReplicas(directory, tree, pool));
  return std::unique_ptr<ReplicaPair>(
      new ReplicaPair(std::move(options), pool, std::move(directory), std::move(tree), std::move(start)));
}

ReplicaPair::ReplicaPair(ReplicaOptions options, WorkerPool& pool, ReplicaDirectory directory, VersionTree tree,
                         ReplicasAtStart start)
    : options_(std::move(options)),
      pool_(pool),
      directory_(std::move(directory)),
      tree_(std::move(tree)),
      kept_(options_.keep_delta_bytes, options_.keep_older_deltas),
      replicas_(std::move(start.replicas)),
      damage_(std::move(start.damage)),
      current_(start.current),
      rollback_(directory_.rollback()) {
  KeepRoom();
}

PublishedVersion ReplicaPair::current() const {
  MutexLock lock(mutex_);
  return current_ < 0 ? PublishedVersion() : Describe(static_cast<size_t>(current_));
}

PublishedVersion ReplicaPair::previous() const {
  MutexLock lock(mutex_);
  return current_ < 0 ? PublishedVersion() : Describe(target_index());
}

PublishedVersion ReplicaPair::Describe(size_t index) const {
  const Replica& replica = replicas_[index];
  if (!replica.whole) return {};
  const ReplicaState& whole = *replica.whole;
  const std::string path = replica.name.empty() ? "" : tree_.PathOf(replica.name);
  return {whole.manifest.held,     whole.manifest.digest, whole.layout,   path,
          whole.committed_unix_ns, whole.label,           damaged_[index]};
}

// The kept deltas that lead from the target's version to the current one. None: not all of them are kept.
payload::DeltaChain ReplicaPair::ChainOfTarget() const {
  if (!target().whole || damaged_[target_index()]) return {};
  return kept_.Between(target().whole->manifest.held, replicas_[current_].whole->manifest.held);
}

Result<std::vector<BlockIndex>> ReplicaPair::BringForward(payload::DeltaChain steps, const std::stop_token& stop) {
  const ReplicaState& base = *replicas_[current_].whole;
  const bool base_damaged = damaged_[current_];
  const VersionRef before = target().whole ? target().whole->manifest.held : VersionRef();
  payload::DeltaChain chain = ChainOfTarget();
  LS_ASSIGN_OR_RETURN(const bool content_kept, MakeWritable(base.layout, stop));
  const bool led = content_kept && !chain.empty() && !damaged_[target_index()];  // which nobody marks from here on
  const std::span<const std::byte> from = replicas_[current_].file.data();
  const std::span<std::byte> to = target().file.data();
  const auto apply = [&](const payload::DeltaChain& applied) {
    const std::vector<Version> versions(base.layout->block_count(), applied.front()->base().version);
    return ApplyChain(*base.layout, applied, versions, to, pool_);
  };
  Edge("applying");
  std::vector<BlockIndex> bad;
  if (base_damaged) {
    if (led) (void)apply(chain);  // what does not come out right is copied
    bad = CompleteBlocks(*base.layout, base.manifest.block_hashes, from, to, pool_);
    chain.clear();
  } else if (!led) {
    bad = CopyBlocks(*base.layout, base.manifest.block_hashes, from, to, pool_);
    MarkDamagedAmong(static_cast<size_t>(current_), base, bad, "sync");
    chain.clear();
  }
  const bool stepped = !chain.empty();
  chain.insert(chain.end(), steps.begin(), steps.end());
  if (!chain.empty()) {
    std::vector<BlockIndex> damaged = apply(chain);
    if (stepped && !damaged.empty()) {  // the target was not what it is called: any block of it may be wrong
      const std::vector<Version> versions(base.layout->block_count(), base.manifest.held.version);
      const std::vector<uint64_t> promised = HashesAfter(steps, versions, base.manifest.block_hashes);
      damaged = Differing(HashBlocks(*base.layout, to, pool_), promised);
      if (!damaged.empty()) Report(before, damaged, "sync");
    }
    bad.insert(bad.end(), damaged.begin(), damaged.end());
    std::sort(bad.begin(), bad.end());
    bad.erase(std::unique(bad.begin(), bad.end()), bad.end());
  }
  Edge("applied");
  return bad;
}

Status ReplicaPair::BeginFull(const std::shared_ptr<const model::ModelLayout>& layout, const std::stop_token& stop) {
  return ToStatus(MakeWritable(layout, stop));
}

std::vector<BlockIndex> ReplicaPair::CatchUp(const payload::DeltaChain& steps, const std::vector<Version>& versions) {
  const ReplicaFile& file = target().file;
  return ApplyChain(*file.layout(), steps, versions, file.data(), pool_);
}

Status ReplicaPair::Commit(model::Manifest manifest, int64_t committed_unix_ns, const payload::DeltaChain& steps,
                           std::string label) {
  Replica& replica = target();
  const VersionRef base = current_ < 0 ? VersionRef() : replicas_[current_].whole->manifest.held;
  ReplicaState state{replica.file.layout(), std::move(manifest), committed_unix_ns, std::move(label)};
  directory_.GiveRoom();
  LS_RETURN_IF_ERROR(WriteReplicaState(replica.state_path, state));
  Edge("state written");
  damaged_[target_index()] = false;
  EndWriting();
  {
    MutexLock lock(mutex_);
    replica.whole = std::move(state);
  }
  LS_RETURN_IF_ERROR(SwitchToOther());
  kept_.Add(steps, base);
  return OkStatus();
}

void ReplicaPair::EndWriting() {
  target().file.Release();
  writing_ = {};
}

Status ReplicaPair::SwitchToOther() {
  Replica& replica = target();
  if (!replica.whole || damaged_[target_index()]) {
    return {ErrorCode::kState,
            Cat("model ", options_.model, ": the other replica holds no whole version to switch to")};
  }
  directory_.GiveRoom();
  LS_RETURN_IF_ERROR(PublishTarget());
  Edge("published");
  LS_RETURN_IF_ERROR(tree_.SwitchCurrent(replica.name));
  Edge("committed");
  {
    MutexLock lock(mutex_);
    current_ = static_cast<int>(target_index());
  }
  KeepRoom();
  return OkStatus();
}

// Has its directory, if it has none yet.
Status ReplicaPair::PublishTarget() {
  Replica& replica = target();
  if (!replica.name.empty()) return OkStatus();
  directory_.GiveRoom();
  const std::string taken = current_ < 0 ? "" : replicas_[current_].name;
  const std::string name = VersionTree::NameFor(replica.whole->manifest.held, taken);
  const Status published = tree_.Publish(name, replica.path, *replica.whole);
  MutexLock lock(mutex_);
  if (published.ok()) {
    replica.name = name;
  } else if (::access(replica.path.c_str(), F_OK) != 0) {
    replica.whole.reset();  // the file was removed
  }
  return published;
}

Rollback ReplicaPair::rollback() const {
  const VersionRef held = current().held;
  MutexLock lock(mutex_);
  return rollback_.skip != (rollback_.version == held) ? rollback_ : Rollback();
}

// The note does not count before the switch, so a crash in between leaves what was before.
Status ReplicaPair::RollBack(const Rollback& chosen) {
  directory_.GiveRoom();
  LS_RETURN_IF_ERROR(directory_.MarkRollback(chosen));
  Edge("rollback noted");
  {
    MutexLock lock(mutex_);
    rollback_ = chosen;
  }
  if (chosen.skip == (current().held == chosen.version)) return SwitchToOther();
  KeepRoom();
  return OkStatus();
}

Status ReplicaPair::EndRollback() {
  {
    MutexLock lock(mutex_);
    if (std::exchange(rollback_, {}).version.nothing()) return OkStatus();
  }
  return directory_.MarkRollback({});
}

std::span<const std::byte> ReplicaPair::current_data() const {
  return current_ < 0 ? std::span<std::byte>() : replicas_[current_].file.data();
}

std::span<const std::byte> ReplicaPair::previous_data() const {
  return current_ < 0 || !target().whole ? std::span<std::byte>() : target().file.data();
}

payload::DeltaChain ReplicaPair::DeltasBetween(const VersionRef& one, const VersionRef& other) const {
  payload::DeltaChain chain = kept_.Between(one, other);
  return chain.empty() ? kept_.Between(other, one) : chain;
}

void ReplicaPair::Edge(std::string_view edge) const {
  if (options_.at_edge) options_.at_edge(edge);
}

}  // namespace lockstep::replica
