#include "raas_receiver/replica/replica_pair.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "common/base/text.h"
#include "common/model/model_name.h"
#include "common/model/safetensors.h"
#include "common/os/filesystem.h"

namespace lockstep::replica {
namespace {

constexpr uint64_t kWarmStep = 64 << 20;
constexpr uint64_t kPage = 4096;
constexpr std::chrono::milliseconds kReadersPoll{5};

// What Commit() writes beside the replica's file: the state, the attachments, and one page each for the state's last,
// lockstep.json, a directory and a note. Links to assets find the room of those of the version before.
uint64_t RoomToCommit(const model::ModelLayout& layout) {
  uint64_t bytes = MaxReplicaStateBytes(layout) + 4 * kPage;
  for (const auto& [name, text] : layout.attachments()) bytes += text.size() + kPage;
  return bytes;
}

// That `replicas` of `bytes` each do not fit into `room`, of which this much was free.
Status NoRoom(const ReplicaOptions& options, size_t replicas, uint64_t bytes, const os::FileSystem& room) {
  const std::string what = replicas == 1 ? "a replica" : Cat(replicas, " replicas of ", os::ExactBytes(bytes));
  return {ErrorCode::kResourceExhausted,
          Cat("model ", options.model, " needs ", os::ExactBytes(replicas * bytes), " in ", options.root, " for ", what,
              ", and its ", room.name, " has ", os::ExactBytes(room.free_bytes),
              " free; enlarge it, give memory back (other models, readers of old versions) or choose another --root")};
}

}  // namespace

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

Status ReplicaPair::Allocate(const std::shared_ptr<const model::ModelLayout>& layout) {
  std::vector<size_t> lacking;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    Replica& replica = replicas_[i];
    // Memory taken for a layout that never came to a version makes room.
    const bool unused = replica.file.valid() && !replica.whole;
    if (unused && replica.file.layout()->digest() != layout->digest()) DropFile(i);
    if (!replica.file.valid()) lacking.push_back(i);
  }
  if (lacking.empty()) return OkStatus();
  const auto room = os::FileSystemOf(directory_.scratch());
  std::array<Status, 2> outcomes;
  pool_.ParallelFor(lacking.size(), [&](size_t i) {
    Replica& replica = replicas_[lacking[i]];
    Result<ReplicaFile> file = ReplicaFile::Create(replica.path, layout);
    if (file.ok()) {
      replica.file = *std::move(file);
    } else {
      outcomes[i] = file.status();
    }
  });
  const auto failed = std::find_if(outcomes.begin(), outcomes.end(), [](const Status& status) { return !status.ok(); });
  if (failed == outcomes.end()) return OkStatus();
  // One alone is of no use, and would take the room that other models need.
  for (const size_t i : lacking) DropFile(i);
  if (failed->code() != ErrorCode::kResourceExhausted || !room.ok()) return *failed;
  return NoRoom(options_, lacking.size(), model::ImageBytes(*layout), *room);
}

void ReplicaPair::DropFile(size_t replica) {
  const std::unique_lock writing(bytes_mutexes_[replica]);  // it may have been current when it began to be verified
  replicas_[replica].file = ReplicaFile();
  ::unlink(replicas_[replica].path.c_str());
}

bool ReplicaPair::WarmTarget() {
  return current_ >= 0 && target().file.valid() && target().file.Warm(kWarmStep, pool_);
}

// Whether its content was kept. After an error a version is still there unless its state was removed.
Result<bool> ReplicaPair::MakeWritable(const std::shared_ptr<const model::ModelLayout>& layout,
                                       const std::stop_token& stop) {
  EndWriting();  // an attempt that failed before may have left its claim
  LS_RETURN_IF_ERROR(directory_.KeepRoom(RoomToCommit(*layout)));
  Replica& replica = target();
  const bool whole = replica.whole.has_value();
  LS_RETURN_IF_ERROR(WithdrawTarget());
  const bool claimed =
      replica.file.valid() && directory_.leases_see_mappings() && replica.file.Claim(options_.reader_grace, stop);
  Result<bool> kept = false;
  if (!AwaitReaders(stop) || stop.stop_requested()) {
    kept = Kept();
  } else if (claimed) {
    kept = RewriteFile(layout, whole);
  } else if (const Status replaced = ReplaceFile(layout, whole); !replaced.ok()) {
    kept = replaced;
  }
  if (!kept.ok() && replica.whole) RestoreTarget();
  if (!kept.ok()) KeepRoom();
  const auto room = os::FileSystemOf(directory_.scratch());
  if (kept.status().code() != ErrorCode::kResourceExhausted || !room.ok()) return kept;
  return NoRoom(options_, 1, model::ImageBytes(*layout), *room);
}

// Waits until no verification that began when the target was current reads it. False: `stop` came first.
bool ReplicaPair::AwaitReaders(const std::stop_token& stop) {
  std::shared_mutex& bytes = bytes_mutexes_[target_index()];
  while (!bytes.try_lock()) {
    if (stop.stop_requested()) return false;
    std::this_thread::sleep_for(kReadersPoll);
  }
  bytes.unlock();
  return true;
}

// In the target's file, which is claimed. Whether its content was kept.
Result<bool> ReplicaPair::RewriteFile(const std::shared_ptr<const model::ModelLayout>& layout, bool whole) {
  Replica& replica = target();
  LS_RETURN_IF_ERROR(replica.file.ReserveFor(replica.path, *layout));
  if (const Status given_up = GiveUpTarget(); !given_up.ok()) {
    replica.file.GiveBackRoom();
    return given_up;
  }
  if (replica.file.layout()->digest() == layout->digest()) return whole;
  LS_RETURN_IF_ERROR(replica.file.Reshape(replica.path, layout));
  return false;
}

// In a new file, made beside the target's, which a reader may have.
Status ReplicaPair::ReplaceFile(const std::shared_ptr<const model::ModelLayout>& layout, bool whole) {
  Replica& replica = target();
  const bool fits = replica.file.valid() && replica.file.layout()->digest() == layout->digest();
  const bool of_use = whole && ::access(replica.path.c_str(), F_OK) == 0;
  // Where leases do not tell, perhaps no process has it: then it makes room, if there is no other.
  if (!of_use || (!directory_.leases_see_mappings() && FitsInPlaceAlone(*layout))) {
    LS_RETURN_IF_ERROR(GiveUpTarget());
    replica.file = ReplicaFile();
    ::unlink(replica.path.c_str());
  }
  LS_ASSIGN_OR_RETURN(ReplicaFile next, ReplicaFile::Create(directory_.NextReplicaPath(), layout));
  if (const Status given_up = GiveUpTarget(); !given_up.ok()) {
    ::unlink(directory_.NextReplicaPath().c_str());
    return given_up;
  }
  if (::rename(directory_.NextReplicaPath().c_str(), replica.path.c_str()) != 0) {
    const Status failed = ErrnoStatus(errno, Cat("rename ", directory_.NextReplicaPath(), " to ", replica.path));
    ::unlink(directory_.NextReplicaPath().c_str());
    return failed;
  }
  replica.file = std::move(next);
  if (fits) ++replaced_;
  Edge("file replaced");
  return OkStatus();
}

// Whether a file of `layout` has room only once that of the target is gone.
bool ReplicaPair::FitsInPlaceAlone(const model::ModelLayout& layout) const {
  const uint64_t needed = model::ImageBytes(layout);
  const auto room = os::FileSystemOf(directory_.scratch());
  return room.ok() && room->free_bytes < needed && needed <= room->free_bytes + target().file.bytes();
}

// The target's version is published again.
void ReplicaPair::RestoreTarget() {
  EndWriting();
  (void)PublishTarget();  // else when it is gone back to
}

// For a rollback, which has to work where nothing else does.
void ReplicaPair::KeepRoom() {
  if (current_ >= 0) (void)directory_.KeepRoom(RoomToCommit(*replicas_[current_].whole->layout));
}

// The version stays, and can be published again.
Status ReplicaPair::WithdrawTarget() {
  Replica& replica = target();
  if (!replica.name.empty()) LS_RETURN_IF_ERROR(tree_.Withdraw(replica.name));
  {
    MutexLock lock(mutex_);
    replica.name.clear();
  }
  Edge("withdrawn");
  return OkStatus();
}

Status ReplicaPair::RemoveTargetState() {
  Replica& replica = target();
  if (::unlink(replica.state_path.c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, Cat("remove ", replica.state_path));
  }
  {
    MutexLock lock(mutex_);
    replica.whole.reset();
  }
  Edge("state removed");
  return OkStatus();
}

// From here on the target's version is gone, and its bytes are the session's alone.
Status ReplicaPair::GiveUpTarget() {
  if (writing_.owns_lock()) return OkStatus();
  if (target().whole && may_give_up_ && !may_give_up_()) return Kept();
  LS_RETURN_IF_ERROR(RemoveTargetState());
  writing_ = std::unique_lock(bytes_mutexes_[target_index()]);
  return OkStatus();
}

Status ReplicaPair::Kept() const {
  return {ErrorCode::kCancelled, Cat("model ", options_.model, ": the sync was ended, and the version before stays")};
}

Status ReplicaPair::DropOther() {
  LS_RETURN_IF_ERROR(WithdrawTarget());
  return RemoveTargetState();
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
