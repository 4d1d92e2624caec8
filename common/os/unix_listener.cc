#include "common/os/unix_listener.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>

#include "common/base/text.h"
#include "common/os/file.h"
#include "common/os/unix_address.h"

namespace lockstep::os {
namespace {

constexpr int kBacklog = 64;
constexpr std::chrono::milliseconds kProbeTimeout{1000};

// A socket file survives a killed process. Only an answered connect() distinguishes a live owner from a dead one.
Status RemoveStale(const std::string& path) {
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? OkStatus() : ErrnoStatus(errno, Cat("socket ", path));
  }
  if (!S_ISSOCK(info.st_mode)) {
    return {ErrorCode::kBadData, Cat(path, " exists and is not a socket; remove it or choose another path")};
  }
  const Result<UnixConnection> probe = UnixConnect(path, kProbeTimeout);
  if (probe.ok() || probe.status().code() == ErrorCode::kDeadline) {
    return {ErrorCode::kUnavailable,
            Cat("another process already listens at ", path, "; end it, or give another path")};
  }
  if (probe.status().code() != ErrorCode::kUnavailable) return probe.status();
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoStatus(errno, Cat("remove stale socket ", path));
  return OkStatus();
}

}  // namespace

Result<UnixListener> UnixListener::Create(const std::string& path, std::optional<gid_t> group) {
  LS_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  const std::string directory = std::filesystem::path(path).parent_path().string();
  if (!directory.empty()) LS_RETURN_IF_ERROR(MakeDirs(directory, 0750));
  LS_RETURN_IF_ERROR(RemoveStale(path));

  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return ErrnoStatus(errno, "make an eventfd");
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return ErrnoStatus(errno, "make a unix socket");
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return ErrnoStatus(errno, Cat("bind socket ", path));
  }
  UnixListener listener(path, std::move(socket), std::move(wake));
  // No peer can connect before listen(), so the mode is right from the first connection on.
  if (group && ::chown(path.c_str(), static_cast<uid_t>(-1), *group) != 0) {
    return ErrnoStatus(errno, Cat("give socket ", path, " to group ", *group, ", which this user must be in"));
  }
  if (::chmod(path.c_str(), 0660) != 0) return ErrnoStatus(errno, Cat("chmod socket ", path));
  if (::listen(listener.socket_.get(), kBacklog) != 0) return ErrnoStatus(errno, Cat("listen at ", path));
  return listener;
}

UnixListener::UnixListener(std::string path, UniqueFd socket, UniqueFd wake)
    : path_(std::move(path)), socket_(std::move(socket)), wake_(std::move(wake)) {}

UnixListener::~UnixListener() {
  if (socket_.valid()) ::unlink(path_.c_str());
}

Result<UnixConnection> UnixListener::Accept(std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  while (true) {
    pollfd fds[] = {{wake_.get(), POLLIN, 0}, {socket_.get(), POLLIN, 0}};
    const int ready = ::poll(fds, 2, deadline.PollTimeoutMs());
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, Cat("wait at ", path_));
    if (ready == 0) return Status(ErrorCode::kDeadline, Cat("no peer connected to ", path_));
    if (ready < 0) continue;
    if (fds[0].revents != 0) return Status(ErrorCode::kCancelled, Cat("no more connections at ", path_));
    UniqueFd fd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) return UnixConnection(std::move(fd));
    const bool gone = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
    if (!gone) return ErrnoStatus(errno, Cat("accept at ", path_));
  }
}

void UnixListener::Wake() {
  ::eventfd_write(wake_.get(), 1);
}

}  // namespace lockstep::os
