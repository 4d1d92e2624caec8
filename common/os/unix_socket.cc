#include "common/os/unix_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include <cerrno>
#include <cstring>

#include "common/base/text.h"
#include "common/os/unix_address.h"

namespace lockstep::os {
namespace {

// The control part of one message: room for the descriptors it may carry, aligned as the kernel wants it.
struct ControlBuffer {
  alignas(cmsghdr) char bytes[CMSG_SPACE(kMaxPassedFds * sizeof(int))] = {};
};

Status WaitFor(int fd, short events, const Deadline& deadline, std::string_view what) {
  while (true) {
    pollfd poll_fd{fd, events, 0};
    const int ready = ::poll(&poll_fd, 1, deadline.PollTimeoutMs());
    if (ready > 0) return OkStatus();
    if (ready == 0) return {ErrorCode::kDeadline, Cat(what, ": the peer did not answer in time")};
    if (errno != EINTR) return ErrnoStatus(errno, what);
  }
}

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

}  // namespace

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
      LS_RETURN_IF_ERROR(WaitFor(fd_.get(), POLLOUT, deadline, "send on unix socket"));
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
      LS_RETURN_IF_ERROR(WaitFor(fd_.get(), POLLIN, deadline, "receive on unix socket"));
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

void UnixConnection::Shutdown() {
  ::shutdown(fd_.get(), SHUT_RDWR);
}

Result<UnixConnection> UnixConnect(const std::string& path, std::chrono::milliseconds timeout) {
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
    const timespec pause{0, 5'000'000};
    ::nanosleep(&pause, nullptr);
  }
  return UnixConnection(std::move(fd));
}

}  // namespace lockstep::os
