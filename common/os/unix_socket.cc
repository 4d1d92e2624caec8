#include "common/os/unix_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "common/base/text.h"
#include "common/os/file.h"
#include "common/os/unix_address.h"

namespace lockstep::os {
namespace {

// How long a wait goes on before it asks whether it should. A signal alone would not do: it may come just before
// poll(), or to another thread.
constexpr int kAskMs = 200;

// The control part of one message: room for the descriptors it may carry, aligned as the kernel wants it.
struct ControlBuffer {
  alignas(cmsghdr) char bytes[CMSG_SPACE(kMaxPassedFds * sizeof(int))] = {};
};

void AttachFds(msghdr& message, ControlBuffer& control, std::span<const int> fds) {
  message.msg_control = control.bytes;
  message.msg_controllen = CMSG_SPACE(fds.size_bytes());
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size_bytes());
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
}

// Takes ownership of every descriptor that the kernel put into `message`.
void CollectFds(msghdr& message, std::vector<UniqueFd>& fds) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      fds.emplace_back(fd);
    }
  }
}

bool WouldBlock(int error) {
  return error == EAGAIN || error == EWOULDBLOCK;
}

Status PeerClosed(size_t missing, size_t wanted) {
  if (missing == wanted) return {ErrorCode::kUnavailable, "peer closed"};
  return {ErrorCode::kUnavailable,
          Cat("peer closed in the middle of a message, after ", wanted - missing, " of ", wanted, " bytes")};
}

// As SO_PEERCRED names a process, but it cannot be mistaken for another that got its number since.
#ifndef SO_PEERPIDFD
constexpr int SO_PEERPIDFD = 77;
#endif

// -1 with errno.
int OpenPeerProcess(int socket) {
  int process = -1;
  socklen_t size = sizeof process;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &process, &size) == 0) return process;
  if (errno != ENOPROTOOPT) return -1;
  // An older kernel. A number that is another process's by now means that the peer is dead: it is noticed as late as it
  // would be without this.
  ucred credentials{};
  size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return -1;
  if (credentials.pid > 0) return static_cast<int>(::syscall(SYS_pidfd_open, credentials.pid, 0));
  errno = ENOSYS;  // of another pid namespace
  return -1;
}

}  // namespace

bool PeerProcess::Ended(std::chrono::milliseconds wait) const {
  pollfd process{pidfd(), POLLIN, 0};
  return ::poll(&process, 1, static_cast<int>(wait.count())) > 0;
}

Status UnixConnection::WaitFor(short events, const Deadline& deadline, std::string_view what) const {
  while (true) {
    pollfd fds[] = {{fd_.get(), events, 0}, {pidfd(), POLLIN, 0}};  // poll() passes over a negative one
    const int left = deadline.PollTimeoutMs();
    const bool asks = interrupted_ && (left < 0 || left > kAskMs);
    const int ready = ::poll(fds, 2, asks ? kAskMs : left);
    if (ready == 0 && !asks) return {ErrorCode::kDeadline, Cat(what, ": the peer did not answer in time")};
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, what);
    if (ready > 0 && fds[0].revents != 0) return OkStatus();
    if (ready > 0) {
      // It may have sent something between poll()'s looks at the one and at the other.
      if (::poll(fds, 1, 0) > 0) return OkStatus();
      return {ErrorCode::kUnavailable, Cat(what, ": the peer's process has ended")};
    }
    if (interrupted_ && interrupted_()) return {ErrorCode::kDeadline, Cat(what, ": interrupted")};
  }
}

Status UnixConnection::WatchPeerProcess() {
  LS_ASSIGN_OR_RETURN(const PeerCredentials peer, Peer());
  UniqueFd process(OpenPeerProcess(fd_.get()));
  const bool ended = !process.valid() && errno == ESRCH;
  process_ = std::make_shared<PeerProcess>(peer.pid, std::move(process));
  return ended ? Status(ErrorCode::kUnavailable, "the peer's process has ended") : OkStatus();
}

bool UnixConnection::PeerGone() const {
  pollfd fds[] = {{fd_.get(), POLLRDHUP, 0}, {pidfd(), POLLIN, 0}};
  return ::poll(fds, 2, 0) > 0;
}

Status UnixConnection::Send(std::span<const std::byte> bytes, std::span<const int> fds,
                            std::chrono::milliseconds timeout) {
  if (fds.size() > kMaxPassedFds || (bytes.empty() && !fds.empty())) {
    return {ErrorCode::kInternal,
            Cat("a message of ", bytes.size(), " bytes cannot carry ", fds.size(), " descriptors")};
  }
  const Deadline deadline(timeout);
  ControlBuffer control;
  while (!bytes.empty()) {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!fds.empty()) AttachFds(message, control, fds);
    const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
      fds = {};
    } else if (WouldBlock(errno)) {
      LS_RETURN_IF_ERROR(WaitFor(POLLOUT, deadline, "send on unix socket"));
    } else if (errno != EINTR) {
      return ErrnoStatus(errno, "send on unix socket");
    }
  }
  return OkStatus();
}

Status UnixConnection::Receive(std::span<std::byte> bytes, std::vector<UniqueFd>* fds,
                               std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  const size_t wanted = bytes.size();
  std::vector<UniqueFd> arrived;
  while (!bytes.empty()) {
    ControlBuffer control;
    iovec part{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    const ssize_t got = ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0 && WouldBlock(errno)) {
      LS_RETURN_IF_ERROR(WaitFor(POLLIN, deadline, "receive on unix socket"));
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, "receive on unix socket");
    CollectFds(message, arrived);
    if (arrived.size() > kMaxPassedFds || (message.msg_flags & MSG_CTRUNC) != 0) {
      return {ErrorCode::kProtocol, Cat("peer passed more than ", kMaxPassedFds, " descriptors in one message")};
    }
    if (got == 0) return PeerClosed(bytes.size(), wanted);
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  if (fds == nullptr && !arrived.empty()) {
    return {ErrorCode::kProtocol, "peer passed descriptors where none belong"};
  }
  for (UniqueFd& fd : arrived) fds->push_back(std::move(fd));
  return OkStatus();
}

Result<PeerCredentials> UnixConnection::Peer() const {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return ErrnoStatus(errno, "read the peer's credentials");
  }
  return PeerCredentials{credentials.pid, credentials.uid, credentials.gid};
}

Result<bool> UnixConnection::PeerIsIn(gid_t group) const {
  LS_ASSIGN_OR_RETURN(const PeerCredentials peer, Peer());
  if (peer.gid == group) return true;
  std::vector<gid_t> groups(32);
  socklen_t bytes = groups.size() * sizeof(gid_t);
  while (::getsockopt(fd_.get(), SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes) != 0) {
    if (errno != ERANGE) return ErrnoStatus(errno, "read the peer's groups");
    groups.resize(bytes / sizeof(gid_t));  // what it takes
  }
  groups.resize(bytes / sizeof(gid_t));
  return std::find(groups.begin(), groups.end(), group) != groups.end();
}

void UnixConnection::Shutdown() {
  ::shutdown(fd_.get(), SHUT_RDWR);
}

Result<UnixConnection> UnixConnect(const std::string& path, std::chrono::milliseconds timeout,
                                   Interrupted interrupted) {
  LS_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "make a unix socket");
  const Deadline deadline(timeout);
  while (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == ENOENT || errno == ECONNREFUSED) {
      return Status(ErrorCode::kUnavailable, Cat("nothing listens at ", path, "; is its daemon running?"));
    }
    // A full backlog cannot be polled for: it is tried again.
    if (!WouldBlock(errno) && errno != EINTR) return ErrnoStatus(errno, Cat("connect to ", path));
    if (deadline.Passed()) return Status(ErrorCode::kDeadline, Cat(path, " did not accept the connection in time"));
    if (interrupted && interrupted()) return Status(ErrorCode::kDeadline, Cat("connect to ", path, ": interrupted"));
    const timespec pause{0, 5'000'000};
    ::nanosleep(&pause, nullptr);
  }
  return UnixConnection(std::move(fd), std::move(interrupted));
}

Status CheckListener(const UnixConnection& connection, const std::string& path) {
  LS_ASSIGN_OR_RETURN(const PeerCredentials peer, connection.Peer());
  if (peer.uid == 0 || peer.uid == ::geteuid()) return OkStatus();
  const std::string directory = std::filesystem::path(path).parent_path();
  struct stat file {};  // itself, not what a link there names
  const bool theirs = ::lstat(path.c_str(), &file) == 0 && S_ISSOCK(file.st_mode) && file.st_uid == peer.uid;
  if (theirs && CheckWayTo(directory.empty() ? "." : directory, peer.uid).ok()) return OkStatus();
  return {ErrorCode::kPermission, Cat("process ", peer.pid, " of uid ", peer.uid, " listens at ", path,
                                      ", and may be an impostor: nothing is handed to it; run the daemon as uid ",
                                      ::geteuid(), " or put its socket where only the daemon's user may write")};
}

}  // namespace lockstep::os
