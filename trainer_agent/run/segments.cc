#include "trainer_agent/run/segments.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <map>

#include "common/base/text.h"
#include "common/model/safetensors.h"
#include "common/os/file.h"
#include "common/os/filesystem.h"
#include "common/telemetry/log.h"

namespace lockstep::run {
namespace {

constexpr char kLockName[] = "lock";

// "<model>.<32 hex digits>", as RunDirectory() makes them.
bool IsRunDirectory(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot != std::string_view::npos && model::CheckModelName(name.substr(0, dot)).ok() &&
         HexDecode16(name.substr(dot + 1)).ok();
}

// Of a run that was ended and is not all removed. A name is changed at once or not at all, so that no two runs of a
// model are ever there to choose from.
constexpr std::string_view kEnded = ".ended";

bool IsEndedDirectory(std::string_view name) {
  return name.ends_with(kEnded) && IsRunDirectory(name.substr(0, name.size() - kEnded.size()));
}

Status EndDirectory(const std::string& path) {
  const std::string ended = Cat(path, kEnded);
  if (::rename(path.c_str(), ended.c_str()) != 0 && errno != ENOENT) return ErrnoStatus(errno, Cat("rename ", path));
  (void)os::RemoveTree(ended);
  return OkStatus();
}

// The run itself is damaged, as opposed to: it could not be opened.
bool IsDamage(const Status& status) {
  return status.code() == ErrorCode::kCorrupt || status.code() == ErrorCode::kProtocol ||
         status.code() == ErrorCode::kBadData || status.code() == ErrorCode::kNotFound;
}

Result<uint64_t> FileBytes(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  return static_cast<uint64_t>(info.st_size);
}

}  // namespace

Result<std::unique_ptr<SegmentHome>> SegmentHome::Create(const std::string& directory, bool memfd) {
  if (memfd) return std::unique_ptr<SegmentHome>(new SegmentHome("", true, false, os::UniqueFd()));
  const bool made = ::access(directory.c_str(), F_OK) != 0;
  LS_RETURN_IF_ERROR(os::MakeDirs(directory, 0700));
  LS_RETURN_IF_ERROR(
      os::CheckOwnDir(directory).WithContext("--segment-dir"));  // others could mislead us by segments of theirs
  LS_RETURN_IF_ERROR(os::CheckWritableDir(directory));
  const std::string lock_path = directory + "/" + kLockName;
  os::UniqueFd lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return ErrnoStatus(errno, lock_path);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0 || !os::Names(lock_path, lock.get())) {
    return Status(ErrorCode::kUnavailable, Cat("segment directory ", directory,
                                               " is in use by another trainer_agent; give each its own --segment-dir"));
  }
  return std::unique_ptr<SegmentHome>(new SegmentHome(directory, false, made, std::move(lock)));
}

SegmentHome::~SegmentHome() {
  const auto names = os::ListDirectory(directory_);
  if (!made_ || !names.ok() || *names != std::vector<std::string>{std::string(kLockName)}) return;
  // An agent that has opened the lock, and gets it now, sees that its name is gone.
  ::unlink(Cat(directory_, "/", kLockName).c_str());
  ::rmdir(directory_.c_str());
}

std::string SegmentHome::RunDirectory(const std::string& model, const RunId& run) const {
  return Cat(directory_, "/", model, ".", ToHex(run));
}

Result<SegmentHome::StoredRun> SegmentHome::Make(const std::string& model, const RunId& run,
                                                 const model::ModelLayout& layout, uint32_t ranks) const {
  LS_RETURN_IF_ERROR(model::CheckModelName(model));
  if (memfd_) {
    LS_ASSIGN_OR_RETURN(auto buffer, DoubleBuffer::Create(model, run, layout, ranks, os::CreateMemfdSegment));
    return StoredRun{std::move(buffer), ""};
  }
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> names, os::ListDirectory(directory_));
  for (const std::string& name : names) {
    const bool earlier = IsRunDirectory(name) && std::string_view(name).substr(0, name.rfind('.')) == model;
    if (earlier) LS_RETURN_IF_ERROR(EndDirectory(Cat(directory_, "/", name)));
  }
  const std::string run_directory = RunDirectory(model, run);
  LS_RETURN_IF_ERROR(os::MakeDirs(run_directory + "/deltas", 0700));
  auto buffer = DoubleBuffer::Create(model, run, layout, ranks, [&](const std::string& name, uint64_t bytes) {
    return os::CreateTmpfsSegment(run_directory + "/" + name, bytes);
  });
  if (!buffer.ok()) {
    (void)os::RemoveTree(run_directory);
    return buffer.status();
  }
  return StoredRun{*std::move(buffer), run_directory + "/deltas"};
}

Result<SegmentHome::StoredRun> SegmentHome::Adopt(std::vector<os::UniqueFd> fds) const {
  if (fds.size() != 3) return Status(ErrorCode::kProtocol, Cat(fds.size(), " descriptors were returned, not 3"));
  struct stat info {};
  if (fstat(fds[0].get(), &info) != 0) return ErrnoStatus(errno, "the control segment returned");
  for (const os::UniqueFd& fd : fds) LS_RETURN_IF_ERROR(os::CheckLasts(fd.get(), "that a rank returned"));
  LS_ASSIGN_OR_RETURN(os::MappedSegment control,
                      os::AdoptSegment(std::move(fds[0]), static_cast<uint64_t>(info.st_size), os::Access::kReadWrite,
                                       "the control segment returned"));
  LS_ASSIGN_OR_RETURN(
      auto buffer, DoubleBuffer::Reopen(std::move(control), [&](const std::string& name, uint64_t bytes) {
        return os::AdoptSegment(std::move(fds[name == "slot-0" ? 1 : 2]), bytes, os::Access::kReadWrite, name);
      }));
  return StoredRun{std::move(buffer), ""};
}

Result<SegmentHome::StoredRun> SegmentHome::Reopen(const std::string& run_directory) const {
  LS_ASSIGN_OR_RETURN(const uint64_t bytes, FileBytes(run_directory + "/control"));
  LS_ASSIGN_OR_RETURN(os::MappedSegment control,
                      os::OpenSegment(run_directory + "/control", bytes, os::Access::kReadWrite));
  LS_ASSIGN_OR_RETURN(auto buffer,
                      DoubleBuffer::Reopen(std::move(control), [&](const std::string& name, uint64_t size) {
                        return os::OpenSegment(run_directory + "/" + name, size, os::Access::kReadWrite);
                      }));
  if (RunDirectory(buffer->model(), buffer->run()) != run_directory) {
    return Status(ErrorCode::kCorrupt, "its control segment names another model or run");
  }
  LS_RETURN_IF_ERROR(os::MakeDirs(run_directory + "/deltas", 0700));
  return StoredRun{std::move(buffer), run_directory + "/deltas"};
}

Result<std::vector<SegmentHome::StoredRun>> SegmentHome::FindAll() const {
  if (memfd_) return std::vector<StoredRun>();
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> names, os::ListDirectory(directory_));
  std::map<std::string, StoredRun> by_model;
  const auto remove = [](const std::string& path, const std::string& reason) {
    telemetry::Log(telemetry::LogLevel::kWarn, "stale_segments_removed", {{"path", path}, {"reason", reason}});
    (void)os::RemoveTree(path);
  };
  for (const std::string& name : names) {
    const std::string path = Cat(directory_, "/", name);
    if (IsEndedDirectory(name)) (void)os::RemoveTree(path);
    if (!IsRunDirectory(name)) continue;
    auto stored = Reopen(path);
    if (!stored.ok()) {
      if (IsDamage(stored.status())) {
        remove(path, stored.status().ToString());
      } else {
        telemetry::LogError("segment_open_failed", stored.status(), {{"path", path}});
      }
      continue;
    }
    StoredRun& kept = by_model[stored->buffer->model()];
    if (kept.buffer != nullptr) {
      return Status(ErrorCode::kState,
                    Cat("model ", kept.buffer->model(), " has two runs, and no clock says which is the newer: ", path,
                        " and ", RunDirectory(kept.buffer->model(), kept.buffer->run()), "; move one of them away"));
    }
    kept = *std::move(stored);
  }
  std::vector<StoredRun> all;
  for (auto& [model, stored] : by_model) all.push_back(std::move(stored));
  return all;
}

Status SegmentHome::CheckRoom(const std::string& model, const std::vector<const model::ModelLayout*>& layouts,
                              const std::vector<const DoubleBuffer*>& replaced) const {
  if (memfd_) return OkStatus();
  struct statvfs room {};
  if (statvfs(directory_.c_str(), &room) != 0) return ErrnoStatus(errno, directory_);
  uint64_t needed = 0;
  for (const model::ModelLayout* const layout : layouts) {
    needed += kSlots * model::ImageBytes(*layout) + ControlSegment::BytesFor(*layout);
  }
  uint64_t available = uint64_t{room.f_bavail} * room.f_frsize;
  for (const DoubleBuffer* const buffer : replaced) available += kSlots * buffer->image_bytes();
  if (needed <= available) return OkStatus();
  return {ErrorCode::kResourceExhausted,
          Cat("model ", model, ": its two slots", layouts.size() > 1 ? ", and those of what derives from it," : "",
              " need ", os::ExactBytes(needed), " in ", directory_, ", which has room for ", os::ExactBytes(available),
              "; enlarge the tmpfs or use another --segment-dir")};
}

void SegmentHome::Remove(const DoubleBuffer& buffer) const {
  if (!memfd_) (void)EndDirectory(RunDirectory(buffer.model(), buffer.run()));
}

}  // namespace lockstep::run
