// ReplicaPair at start: takes over the directory and finds out, by hashing, what is really there.

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "common/base/text.h"
#include "common/os/file.h"
#include "raas_receiver/replica/replica_pair.h"

namespace lockstep {
namespace {

// The replica that the state claims; an error says why the claim does not hold.
Result<ReplicaFile> Prove(const ReplicaState& state, const std::string& path, WorkerPool& pool) {
  LS_ASSIGN_OR_RETURN(ReplicaFile file, ReplicaFile::Open(path, state.layout));
  if (HashBlocks(*state.layout, file.data(), pool) != state.manifest.block_hashes) {
    return Status(ErrorCode::kCorrupt, Cat(path, " does not have the hashes of version ", state.manifest.held.version));
  }
  return file;
}

// Versions of two runs cannot be compared; the trainer's clock has to do.
bool Newer(const ReplicaState& a, const ReplicaState& b) {
  if (a.manifest.held.run == b.manifest.held.run) return a.manifest.held.version > b.manifest.held.version;
  return a.committed_unix_ns > b.committed_unix_ns;
}

}  // namespace

Result<std::unique_ptr<ReplicaPair>> ReplicaPair::Open(ReplicaOptions options, WorkerPool& pool) {
  LS_RETURN_IF_ERROR(CheckModelName(options.model));
  std::unique_ptr<ReplicaPair> pair(new ReplicaPair(std::move(options), pool));
  LS_RETURN_IF_ERROR(pair->Recover());
  return pair;
}

Status ReplicaPair::Recover() {
  LS_RETURN_IF_ERROR(MakeDirs(options_.root));
  LS_RETURN_IF_ERROR(CheckWritableDir(options_.root));
  LS_RETURN_IF_ERROR(MakeDirs(scratch_, 0755));
  LS_RETURN_IF_ERROR(LockDirectory());
  LS_RETURN_IF_ERROR(SweepScratch());
  for (Replica& replica : replicas_) Load(replica);
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> names, tree_.Names());
  for (Replica& replica : replicas_) LS_RETURN_IF_ERROR(Republish(replica, names));
  for (const std::string& name : names) {
    if (name != replicas_[0].name && name != replicas_[1].name) LS_RETURN_IF_ERROR(tree_.Withdraw(name));
  }
  return ChooseCurrent();
}

Status ReplicaPair::LockDirectory() {
  if (::chmod(scratch_.c_str(), 0700) != 0) return ErrnoStatus(errno, Cat("chmod ", scratch_));
  const std::string path = Cat(scratch_, "/lock");
  lock_ = UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock_.valid()) return ErrnoStatus(errno, Cat("open ", path));
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0) return OkStatus();
  if (errno != EWOULDBLOCK) return ErrnoStatus(errno, Cat("lock ", path));
  return {ErrorCode::kState, Cat(options_.root, "/", options_.model,
                                 " belongs to another receiver that is running; choose another --root")};
}

Status ReplicaPair::SweepScratch() const {
  namespace fs = std::filesystem;
  std::error_code error;
  for (fs::directory_iterator it(scratch_, error), end; !error && it != end; it.increment(error)) {
    const std::string path = it->path().string();
    const bool known = path == scratch_ + "/lock" || path == ServedPath() ||
                       std::any_of(replicas_.begin(), replicas_.end(), [&](const Replica& replica) {
                         return path == replica.path || path == replica.state_path;
                       });
    if (!known) LS_RETURN_IF_ERROR(RemoveTree(path));
  }
  if (error) return ErrnoStatus(error.value(), Cat("read ", scratch_));
  return OkStatus();
}

void ReplicaPair::Load(Replica& replica) {
  Result<ReplicaState> state = ReadReplicaState(replica.state_path);
  Result<ReplicaFile> file = state.ok() ? Prove(*state, replica.path, pool_) : Result<ReplicaFile>(state.status());
  if (file.ok()) {
    replica.file = *std::move(file);
    replica.whole = *std::move(state);
    return;
  }
  // Nobody's version: the bytes are of no use to anyone.
  ::unlink(replica.state_path.c_str());
  ::unlink(replica.path.c_str());
}

Status ReplicaPair::Republish(Replica& replica, const std::vector<std::string>& names) {
  if (!replica.whole) return OkStatus();
  const auto found = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
    return tree_.Publishes(name, replica.path, *replica.whole->layout);
  });
  if (found != names.end()) {
    replica.name = *found;
    return tree_.RefreshAssets(replica.name);
  }
  const std::string& taken = replicas_[&replica == &replicas_[0] ? 1 : 0].name;
  const std::string name = VersionTree::NameFor(replica.whole->manifest.held, taken);
  LS_RETURN_IF_ERROR(tree_.Publish(name, replica.path, *replica.whole->layout));
  replica.name = name;
  return OkStatus();
}

Status ReplicaPair::ChooseCurrent() {
  const auto& [first, second] = replicas_;
  if (!first.whole && !second.whole) return tree_.RemoveCurrent();
  const std::string named = tree_.CurrentName();
  if (first.whole && second.whole && named != first.name && named != second.name) {
    current_ = Newer(*second.whole, *first.whole) ? 1 : 0;
  } else if (first.whole && second.whole) {
    current_ = named == first.name ? 0 : 1;
  } else {
    current_ = first.whole ? 0 : 1;
  }
  return replicas_[current_].name == named ? OkStatus() : tree_.SwitchCurrent(replicas_[current_].name);
}

}  // namespace lockstep
