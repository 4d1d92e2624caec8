// The memory of both replicas, and how the target's becomes writable: steps 0 to 3 of FORMAT.md.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "common/base/text.h"
#include "common/model/safetensors.h"
#include "common/os/filesystem.h"
#include "raas_receiver/replica/replica_pair.h"

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

}  // namespace lockstep::replica
