#include "raas_receiver/replica/replica_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <sstream>

#include "common/base/text.h"
#include "common/os/file.h"
#include "common/os/segment.h"
#include "raas_receiver/replica/modes.h"
#include "raas_receiver/replica/replica_file.h"

namespace lockstep::replica {
namespace {

// A note is one line: "<run> <version>", and " skip" where that is meant.
Rollback ReadNote(const std::string& path) {
  const Result<std::string> text = os::ReadFile(path);
  std::string run;
  std::string skip;
  Version version = 0;
  if (!text.ok()) return {};
  std::istringstream words(*text);
  if (!(words >> run >> version)) return {};
  words >> skip;
  const auto id = HexDecode16(run);
  return id.ok() ? Rollback{{{*id}, version}, skip == "skip"} : Rollback();
}

Status WriteNote(const std::string& path, const Rollback& note) {
  const VersionRef& version = note.version;
  return os::WriteFileAtomic(path, Cat(ToHex(version.run), " ", version.version, note.skip ? " skip\n" : "\n"), 0600);
}

// The first line of the notes of what engines serve: those of another boot are of engines that have ended.
std::string ThisBoot() {
  const Result<std::string> id = os::ReadFile("/proc/sys/kernel/random/boot_id");
  return Cat("boot ", id.ok() ? id->substr(0, id->find('\n')) : "unknown");
}

}  // namespace

Result<ReplicaDirectory> ReplicaDirectory::Open(const std::string& root, const std::string& model) {
  ReplicaDirectory directory(Cat(root, "/", model));
  for (const std::string& path : {directory.scratch_, directory.path_, root}) {
    if (::access(path.c_str(), F_OK) != 0) directory.made_.push_back(path);
  }
  LS_RETURN_IF_ERROR(os::MakeDirs(root, kDirectoryMode));
  LS_RETURN_IF_ERROR(os::CheckOwnDir(root).WithContext("--root"));
  LS_RETURN_IF_ERROR(os::CheckWritableDir(root));
  LS_RETURN_IF_ERROR(os::MakeDirs(directory.path_, kDirectoryMode));
  LS_RETURN_IF_ERROR(os::CheckOwnDir(directory.path_));
  LS_RETURN_IF_ERROR(os::MakeDirs(directory.scratch_, kDirectoryMode));
  LS_RETURN_IF_ERROR(os::CheckOwnDir(directory.scratch_));
  LS_RETURN_IF_ERROR(directory.Lock());
  LS_RETURN_IF_ERROR(directory.Sweep());
  LS_ASSIGN_OR_RETURN(directory.leases_see_mappings_, LeasesSeeMappings(directory.scratch_));
  return directory;
}

ReplicaDirectory::~ReplicaDirectory() {
  const auto names = os::ListDirectory(scratch_);
  if (!lock_.valid() || made_.empty() || !names.ok() || *names != std::vector<std::string>{"lock"}) return;
  // A receiver that has opened the lock, and gets it now, sees that its name is gone.
  ::unlink(Cat(scratch_, "/lock").c_str());
  for (const std::string& path : made_) ::rmdir(path.c_str());
}

std::string ReplicaDirectory::ReplicaPath(size_t index) const {
  return Cat(scratch_, "/replica-", index, ".safetensors");
}

std::string ReplicaDirectory::StatePath(size_t index) const {
  return Cat(scratch_, "/replica-", index, ".state");
}

Status ReplicaDirectory::Lock() {
  if (::chmod(scratch_.c_str(), 0700) != 0) return ErrnoStatus(errno, Cat("chmod ", scratch_));
  const std::string path = Cat(scratch_, "/lock");
  lock_ = os::UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock_.valid()) return ErrnoStatus(errno, Cat("open ", path));
  const bool locked = ::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0;
  if (locked && os::Names(path, lock_.get())) return OkStatus();
  const int error = errno;
  lock_.Reset();
  if (!locked && error != EWOULDBLOCK) return ErrnoStatus(error, Cat("lock ", path));
  return {ErrorCode::kState, Cat(path_, " belongs to another receiver that is running; choose another --root")};
}

Status ReplicaDirectory::Sweep() const {
  const std::set<std::string> ours{scratch_ + "/lock", ServedPath(),   RolledBackPath(), ReplicaPath(0),
                                   StatePath(0),       ReplicaPath(1), StatePath(1),     SpoolPath()};
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> names, os::ListDirectory(scratch_));
  for (const std::string& name : names) {
    const std::string path = Cat(scratch_, "/", name);
    if (!ours.contains(path)) LS_RETURN_IF_ERROR(os::RemoveTree(path));
  }
  return OkStatus();
}

Status ReplicaDirectory::KeepRoom(uint64_t bytes) const {
  GiveRoom();
  return ToStatus(os::CreateTmpfsSegment(RoomPath(), bytes));
}

void ReplicaDirectory::GiveRoom() const {
  ::unlink(RoomPath().c_str());
}

std::map<std::string, VersionRef> ReplicaDirectory::served() const {
  const Result<std::string> text = os::ReadFile(ServedPath());
  std::map<std::string, VersionRef> served;
  std::istringstream lines(text.ok() ? *text : std::string());
  std::string line;
  if (!std::getline(lines, line) || line != ThisBoot()) return served;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string run, engine;
    Version version = 0;
    const bool whole = static_cast<bool>(words >> run >> version >> engine);
    const auto id = HexDecode16(run);
    if (whole && id.ok()) served[engine] = {{*id}, version};
  }
  return served;
}

Status ReplicaDirectory::MarkServed(const std::string& engine, const VersionRef& held) const {
  std::map<std::string, VersionRef> served = this->served();
  served[engine] = held;
  return WriteServed(served);
}

Status ReplicaDirectory::ForgetServed(const VersionRef& held) const {
  std::map<std::string, VersionRef> served = this->served();
  const auto concerned = [&](const auto& note) { return held.nothing() || note.second == held; };
  return std::erase_if(served, concerned) == 0 ? OkStatus() : WriteServed(served);
}

Status ReplicaDirectory::WriteServed(const std::map<std::string, VersionRef>& served) const {
  std::string lines = ThisBoot() + "\n";
  for (const auto& [name, at] : served) {
    if (!at.nothing()) lines += Cat(ToHex(at.run), " ", at.version, " ", name, "\n");
  }
  return os::WriteFileAtomic(ServedPath(), lines, 0600);
}

Rollback ReplicaDirectory::rollback() const {
  return ReadNote(RolledBackPath());
}

Status ReplicaDirectory::MarkRollback(const Rollback& rollback) const {
  return WriteNote(RolledBackPath(), rollback);
}

}  // namespace lockstep::replica
