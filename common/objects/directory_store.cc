#include "common/objects/directory_store.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>

#include "common/base/ids.h"
#include "common/base/stop_wait.h"
#include "common/base/text.h"
#include "common/os/deadline.h"
#include "common/os/file.h"
#include "common/os/unique_fd.h"
#include "kernels/hash.h"

namespace lockstep::objects {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr size_t kReadBytes = 1 << 20;
// What is written is for the writer's user and its group, or that of a directory with the set-group-ID bit.
constexpr mode_t kFileMode = 0640;
constexpr mode_t kDirectoryMode = 0750;
constexpr milliseconds kLockTime{10'000};
constexpr milliseconds kLockAgain{10};

Status Stopped(const std::stop_token& stop, std::string_view path) {
  if (!stop.stop_requested()) return OkStatus();
  return {ErrorCode::kCancelled, Cat(path, " is not needed any more")};
}

// Anything may lie in a directory that others may write: a FIFO is not waited for.
Result<os::UniqueFd> OpenToRead(const std::string& path) {
  os::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.valid()) return ErrnoStatus(errno, Cat("open ", path));
  struct stat info {};
  if (::fstat(fd.get(), &info) == 0 && S_ISREG(info.st_mode)) return fd;
  return Status(ErrorCode::kBadData, Cat(path, " is no file"));
}

// Held until the descriptor is closed, for as long as one file takes to write. Only the writers' user may open the
// file: whoever opens it for reading can hold a lock that keeps writers out, by flock() and by fcntl() alike.
Result<os::UniqueFd> Lock(const std::string& path, const std::stop_token& stop) {
  os::UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!lock.valid()) return ErrnoStatus(errno, Cat("open ", path));
  const os::Deadline deadline(kLockTime);
  while (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return ErrnoStatus(errno, Cat("lock ", path));
    if (deadline.Passed()) {
      return Status(ErrorCode::kUnavailable, Cat(path, " has been locked by another process for 10 s"));
    }
    if (WaitForStop(kLockAgain, stop)) return Stopped(stop, path);
  }
  return lock;
}

// Wakes one poll when a file is put in place of another in a directory, or a stop is requested.
class ChangeWait {
 public:
  ChangeWait(fs::path directory, const std::stop_token& stop)
      : directory_(std::move(directory)),
        changes_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)),
        stopped_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        on_stop_(stop, [this] { ::eventfd_write(stopped_.get(), 1); }) {}

  // From here on; in place of a directory that is not there yet, the one that it will be made in.
  void Watch() {
    for (const fs::path& watched : {directory_, directory_.parent_path()}) {
      const uint32_t events = IN_MOVED_TO | IN_CLOSE_WRITE | IN_DELETE | IN_CREATE;
      if (::inotify_add_watch(changes_.get(), watched.c_str(), events) >= 0) return;
    }
  }

  void Wait(milliseconds longest) {
    std::array<pollfd, 2> both{{{changes_.get(), POLLIN, 0}, {stopped_.get(), POLLIN, 0}}};
    ::poll(both.data(), both.size(), static_cast<int>(longest.count()));
    alignas(inotify_event) std::array<char, 4096> events;
    while (::read(changes_.get(), events.data(), events.size()) > 0) {
    }
  }

 private:
  const fs::path directory_;
  const os::UniqueFd changes_;
  const os::UniqueFd stopped_;
  const std::stop_callback<std::function<void()>> on_stop_;
};

std::string TagOf(ByteView bytes) {
  return HexEncode(Hash128(bytes));
}

int64_t UnixNanosOf(fs::file_time_type time) {
  const auto since = std::chrono::file_clock::to_sys(time).time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

}  // namespace

Result<std::shared_ptr<ObjectStore>> DirectoryStore::Open(const std::string& path) {
  const std::string plain = fs::path(path).lexically_normal().string();
  if (!plain.starts_with("/")) return Status(ErrorCode::kConfig, Cat(path, " is no absolute path"));
  std::error_code error;
  if (!fs::is_directory(plain, error)) return Status(ErrorCode::kNotFound, Cat(plain, " is no directory; make it"));
  const bool slash = plain.ends_with('/') && plain.size() > 1;
  return std::shared_ptr<ObjectStore>(new DirectoryStore(plain.substr(0, plain.size() - (slash ? 1 : 0))));
}

Status DirectoryStore::Read(const std::string& name, const Take& take, std::stop_token stop) {
  const std::string path = PathOf(name);
  LS_ASSIGN_OR_RETURN(const os::UniqueFd fd, OpenToRead(path));
  Bytes buffer(kReadBytes);
  while (true) {
    LS_RETURN_IF_ERROR(Stopped(stop, path));
    const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, Cat("read ", path));
    if (got == 0) return OkStatus();
    LS_RETURN_IF_ERROR(take(std::span(buffer).first(static_cast<size_t>(got))));
  }
}

Status DirectoryStore::Write(const std::string& name, ByteView bytes, std::stop_token stop) {
  const std::string path = PathOf(name);
  LS_RETURN_IF_ERROR(Stopped(stop, path));
  const Status written = os::WriteFileAtomic(path, bytes, kFileMode);
  if (written.code() != ErrorCode::kNotFound) return written;
  LS_RETURN_IF_ERROR(os::MakeDirs(fs::path(path).parent_path().string(), kDirectoryMode));
  return os::WriteFileAtomic(path, bytes, kFileMode);
}

Result<TaggedObject> DirectoryStore::ReadTagged(const std::string& name, const std::stop_token& stop) {
  LS_ASSIGN_OR_RETURN(Bytes bytes, ReadWhole(*this, name, kMaxTaggedBytes, stop));
  std::string tag = TagOf(bytes);
  return TaggedObject{std::move(bytes), std::move(tag)};
}

Result<std::optional<TaggedObject>> DirectoryStore::ReadChanged(const std::string& name, const std::string& tag,
                                                                milliseconds wait, std::stop_token stop) {
  const std::string path = PathOf(name);
  std::optional<ChangeWait> change;
  if (wait.count() > 0) change.emplace(fs::path(path).parent_path(), stop);
  const auto until = std::chrono::steady_clock::now() + wait;
  while (true) {
    LS_RETURN_IF_ERROR(Stopped(stop, path));
    if (change) change->Watch();  // before it is read: no change is missed between the two
    Result<TaggedObject> object = ReadTagged(name, stop);
    if (object.ok() && object->tag != tag) return std::optional(*std::move(object));
    const bool wanted = object.ok() || object.status().code() == ErrorCode::kNotFound;
    const auto left = std::chrono::ceil<milliseconds>(until - std::chrono::steady_clock::now());
    if (!wanted || left.count() <= 0) {
      if (!object.ok()) return object.status();
      return std::optional<TaggedObject>();
    }
    change->Wait(left);
  }
}

Result<std::string> DirectoryStore::Replace(const std::string& name, const std::string& tag, ByteView bytes,
                                            std::stop_token stop) {
  const std::string path = PathOf(name);
  LS_RETURN_IF_ERROR(Stopped(stop, path));
  LS_RETURN_IF_ERROR(os::MakeDirs(fs::path(path).parent_path().string(), kDirectoryMode));
  LS_ASSIGN_OR_RETURN(const os::UniqueFd lock, Lock(path + ".lock", stop));
  const Result<TaggedObject> present = ReadTagged(name, stop);
  if (!present.ok() && present.status().code() != ErrorCode::kNotFound) return present.status();
  if ((present.ok() ? present->tag : "") != tag) {
    return Status(ErrorCode::kAborted, Cat(path, " was written by another process"));
  }
  LS_RETURN_IF_ERROR(os::WriteFileAtomic(path, bytes, kFileMode));
  return TagOf(bytes);
}

Status DirectoryStore::CheckOwn(const std::string& directory) {
  LS_RETURN_IF_ERROR(os::CheckOwnDir(path_));
  const Status below = os::CheckOwnDir(PathOf(directory));
  return below.code() == ErrorCode::kNotFound ? OkStatus() : below;
}

Result<std::vector<ListedObject>> DirectoryStore::List(const std::string& prefix, std::stop_token stop) {
  // The walk begins in the deepest directory that the prefix names whole.
  const size_t slash = prefix.rfind('/');
  const std::string below = slash == std::string::npos ? path_ : PathOf(prefix.substr(0, slash));
  std::vector<ListedObject> objects;
  std::error_code error;
  fs::recursive_directory_iterator entry(below, error);
  if (error == std::errc::no_such_file_or_directory) return objects;
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    LS_RETURN_IF_ERROR(Stopped(stop, path_));
    std::error_code gone;  // meanwhile
    if (!entry->is_regular_file(gone)) continue;
    ListedObject object{.name = entry->path().lexically_relative(path_).string(),
                        .bytes = entry->file_size(gone),
                        .written_unix_ns = UnixNanosOf(entry->last_write_time(gone))};
    if (!gone && object.name.starts_with(prefix) && !object.name.ends_with(".lock"))
      objects.push_back(std::move(object));
  }
  if (error) return Status(ErrorCode::kIo, Cat("list ", below, ": ", error.message()));
  return objects;
}

Status DirectoryStore::Remove(const std::string& name, std::stop_token stop) {
  const std::string path = PathOf(name);
  LS_RETURN_IF_ERROR(Stopped(stop, path));
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoStatus(errno, Cat("remove ", path));
  return OkStatus();
}

}  // namespace lockstep::objects
