// Stream connections between processes of one machine, with descriptors passed along.
//
// Every wait has a timeout; a timeout is kDeadline and a failure: after one in the middle of a message the stream is
// out of step and the connection must be dropped. A peer that is gone is kUnavailable.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/os/deadline.h"
#include "common/os/fork_guard.h"
#include "common/os/unique_fd.h"

namespace lockstep::os {

// The most descriptors that one message carries.
inline constexpr size_t kMaxPassedFds = 8;

// A wait calls this several times a second; true ends the wait with kDeadline. Empty: never called.
using Interrupted = std::function<bool()>;

struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};

// The process at the other end of a connection; a holder of this never hears of another that got its number since.
class PeerProcess {
 public:
  PeerProcess(pid_t pid, UniqueFd pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}

  pid_t pid() const { return pid_; }          // 0: it is in another pid namespace
  int pidfd() const { return pidfd_.get(); }  // negative: it cannot be seen
  // Whether the process has ended, or does so within `wait`. False where it cannot be seen.
  bool Ended(std::chrono::milliseconds wait = std::chrono::milliseconds(0)) const;

 private:
  const pid_t pid_;
  const UniqueFd pidfd_;
};

// Move-only. One thread may send while another receives; Shutdown() and PeerGone() may be called from any thread.
class UnixConnection {
 public:
  UnixConnection() = default;  // not connected
  // `interrupted` is asked by the thread that waits.
  explicit UnixConnection(UniqueFd fd, Interrupted interrupted = {})
      : fd_(std::move(fd)), interrupted_(std::move(interrupted)) {}
  UnixConnection(UnixConnection&&) noexcept = default;
  UnixConnection& operator=(UnixConnection&& other) noexcept {
    const UnixConnection old = std::move(*this);  // ends in the order of a destructor
    fd_ = std::move(other.fd_);
    process_ = std::move(other.process_);
    interrupted_ = std::move(other.interrupted_);
    guard_ = std::move(other.guard_);
    return *this;
  }

  bool valid() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }
  // Gives the descriptor to the caller. The connection is not connected any more.
  UniqueFd TakeFd() { return std::move(fd_); }

  // Sends all of `bytes`; `fds` travel with the first of them and stay the caller's.
  // REQUIRES bytes not empty when there are fds, and at most kMaxPassedFds of these.
  Status Send(std::span<const std::byte> bytes, std::span<const int> fds, std::chrono::milliseconds timeout);

  // Receives exactly bytes.size() bytes. Descriptors that came with them are appended to `*fds`. With a null `fds` any
  // descriptor is kProtocol, and so are more than kMaxPassedFds. On every error what had arrived is closed.
  Status Receive(std::span<std::byte> bytes, std::vector<UniqueFd>* fds, std::chrono::milliseconds timeout);

  // The process on the other side when it connected, as the kernel says.
  Result<PeerCredentials> Peer() const;
  // Whether `group` was among that process's groups then, first or other ones.
  Result<bool> PeerIsIn(gid_t group) const;

  // From now on the connection also ends with the process that made it: then Send and Receive return kUnavailable, once
  // what it had sent is received, although a child of it may still hold its end. Has no effect where that process
  // cannot be seen: before Linux 6.5 one in another pid namespace, before 5.3 any. kUnavailable: it has ended already.
  Status WatchPeerProcess();
  // The watched process, which may outlive the connection; null without WatchPeerProcess().
  std::shared_ptr<const PeerProcess> peer_process() const { return process_; }
  // Whether the peer has closed, or its watched process has ended. Waits for nothing.
  bool PeerGone() const;

  // Keeps the connection out of processes that are forked off this one (fork_guard.h).
  void KeepFromChildren() { guard_ = ForkGuard(fd_.get()); }

  // Ends both directions: a thread that waits in Send or Receive, here or at the peer, gets kUnavailable.
  void Shutdown();

 private:
  int pidfd() const { return process_ == nullptr ? -1 : process_->pidfd(); }
  Status WaitFor(short events, const Deadline& deadline, std::string_view what) const;

  UniqueFd fd_;
  std::shared_ptr<const PeerProcess> process_;
  Interrupted interrupted_;
  ForkGuard guard_;  // last: it goes before fd_
};

// Connects to a listener. kUnavailable when there is none at `path`. `interrupted` is asked here and by the connection.
Result<UnixConnection> UnixConnect(const std::string& path, std::chrono::milliseconds timeout,
                                   Interrupted interrupted = {});

// OK when the process that listens at `path` may have our data. Its user, which the kernel gives for `connection`, must
// be ours, root, or the owner of the socket at `path`. That owner counts if `path` is no link and only it and root may
// write to the directories above. kPermission names any other process: it may have been there before the daemon.
Status CheckListener(const UnixConnection& connection, const std::string& path);

}  // namespace lockstep::os
