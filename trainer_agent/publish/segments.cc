#include "trainer_agent/publish/segments.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <map>

#include "common/base/text.h"
#include "common/os/file.h"
#include "common/telemetry/log.h"

namespace lockstep {
namespace {

constexpr char kLockName[] = "lock";

std::vector<std::string> Subdirectories(const std::string& directory) {
  std::vector<std::string> paths;
  DIR* const dir = opendir(directory.c_str());
  if (dir == nullptr) return paths;
  while (const dirent* entry = readdir(dir)) {
    const std::string name = entry->d_name;
    if (name != "." && name != ".." && name != kLockName) paths.push_back(directory + "/" + name);
  }
  closedir(dir);
  return paths;
}

Result<uint64_t> FileBytes(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  return static_cast<uint64_t>(info.st_size);
}

}  // namespace

Result<std::unique_ptr<SegmentHome>> SegmentHome::Create(const std::string& directory, bool memfd) {
  if (memfd) return std::unique_ptr<SegmentHome>(new SegmentHome("", true, UniqueFd()));
  LS_RETURN_IF_ERROR(MakeDirs(directory, 0700));
  LS_RETURN_IF_ERROR(CheckWritableDir(directory));
  const std::string lock_path = directory + "/" + kLockName;
  UniqueFd lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return ErrnoStatus(errno, lock_path);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return Status(ErrorCode::kUnavailable, Cat("segment directory ", directory,
                                               " is in use by another trainer_agent; give each its own --segment-dir"));
  }
  return std::unique_ptr<SegmentHome>(new SegmentHome(directory, false, std::move(lock)));
}

std::string SegmentHome::RunDirectory(const std::string& model, const RunId& run) const {
  return Cat(directory_, "/", model, ".", ToHex(run));
}

Result<SegmentHome::Stored> SegmentHome::Make(const std::string& model, const RunId& run, const ModelLayout& layout,
                                              uint32_t ranks) const {
  LS_RETURN_IF_ERROR(CheckModelName(model));
  if (memfd_) {
    LS_ASSIGN_OR_RETURN(auto buffer, DoubleBuffer::Create(model, run, layout, ranks, CreateMemfdSegment));
    return Stored{std::move(buffer), ""};
  }
  const std::string run_directory = RunDirectory(model, run);
  LS_RETURN_IF_ERROR(MakeDirs(run_directory + "/deltas", 0700));
  auto buffer = DoubleBuffer::Create(model, run, layout, ranks, [&](const std::string& name, uint64_t bytes) {
    return CreateTmpfsSegment(run_directory + "/" + name, bytes);
  });
  if (!buffer.ok()) {
    (void)RemoveTree(run_directory);
    return buffer.status();
  }
  return Stored{*std::move(buffer), run_directory + "/deltas"};
}

Result<SegmentHome::Stored> SegmentHome::Adopt(std::vector<UniqueFd> fds) const {
  if (fds.size() != 3) return Status(ErrorCode::kProtocol, Cat(fds.size(), " descriptors were handed back, not 3"));
  struct stat info {};
  if (fstat(fds[0].get(), &info) != 0 || info.st_size <= 0)
    return ErrnoStatus(errno, "the control segment handed back");
  LS_ASSIGN_OR_RETURN(MappedSegment control, AdoptSegment(std::move(fds[0]), static_cast<uint64_t>(info.st_size),
                                                          Access::kReadWrite, "the control segment handed back"));
  LS_ASSIGN_OR_RETURN(auto buffer,
                      DoubleBuffer::Reopen(std::move(control), [&](const std::string& name, uint64_t bytes) {
                        return AdoptSegment(std::move(fds[name == "half-0" ? 1 : 2]), bytes, Access::kReadWrite, name);
                      }));
  return Stored{std::move(buffer), ""};
}

Result<SegmentHome::Stored> SegmentHome::Reopen(const std::string& run_directory) const {
  LS_ASSIGN_OR_RETURN(const uint64_t bytes, FileBytes(run_directory + "/control"));
  LS_ASSIGN_OR_RETURN(MappedSegment control, OpenSegment(run_directory + "/control", bytes, Access::kReadWrite));
  LS_ASSIGN_OR_RETURN(auto buffer,
                      DoubleBuffer::Reopen(std::move(control), [&](const std::string& name, uint64_t size) {
                        return OpenSegment(run_directory + "/" + name, size, Access::kReadWrite);
                      }));
  if (RunDirectory(buffer->model(), buffer->run()) != run_directory) {
    return Status(ErrorCode::kCorrupt, "its control segment names another model or run");
  }
  LS_RETURN_IF_ERROR(MakeDirs(run_directory + "/deltas", 0700));
  return Stored{std::move(buffer), run_directory + "/deltas"};
}

std::vector<SegmentHome::Stored> SegmentHome::FindAll() const {
  std::map<std::string, Stored> by_model;
  if (memfd_) return {};
  for (const std::string& path : Subdirectories(directory_)) {
    auto stored = Reopen(path);
    if (stored.ok() && stored->buffer->NewestCommitted() && by_model.count(stored->buffer->model()) == 0) {
      by_model.emplace(stored->buffer->model(), *std::move(stored));
      continue;
    }
    Log(LogLevel::kWarn, "stale_segments_removed",
        {{"path", path},
         {"reason",
          stored.ok() ? "no committed version, or another run of the model is kept" : stored.status().ToString()}});
    (void)RemoveTree(path);
  }
  std::vector<Stored> all;
  for (auto& [model, stored] : by_model) all.push_back(std::move(stored));
  return all;
}

void SegmentHome::Remove(const DoubleBuffer& buffer) const {
  if (!memfd_) (void)RemoveTree(RunDirectory(buffer.model(), buffer.run()));
}

}  // namespace lockstep
