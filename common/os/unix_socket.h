// Stream connections between processes of one machine, with descriptors passed along.
//
// Every wait has a timeout; a timeout is kDeadline and a failure: after one in the middle of a message the stream is
// out of step and the connection must be dropped. A peer that is gone is kUnavailable.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/os/deadline.h"
#include "common/os/unique_fd.h"

namespace lockstep::os {

// The most descriptors that one message carries.
inline constexpr size_t kMaxPassedFds = 8;

struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};

// Move-only. One thread may send while another receives; Shutdown() may be called from any thread.
class UnixConnection {
 public:
  UnixConnection() = default;  // not connected
  explicit UnixConnection(UniqueFd fd) : fd_(std::move(fd)) {}

  bool valid() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }
  // What is left is not connected.
  UniqueFd TakeFd() { return std::move(fd_); }

  // Sends all of `bytes`; `fds` travel with the first of them and stay the caller's.
  // REQUIRES bytes not empty when there are fds, and at most kMaxPassedFds of these.
  Status Send(std::span<const std::byte> bytes, std::span<const int> fds, std::chrono::milliseconds timeout);

  // Receives exactly bytes.size() bytes. Descriptors that came with them are appended to `*fds`. With a null `fds` any
  // descriptor is kProtocol, and so are more than kMaxPassedFds. On every error what had arrived is closed.
  Status Receive(std::span<std::byte> bytes, std::vector<UniqueFd>* fds, std::chrono::milliseconds timeout);

  // Who was on the other side when it connected, as the kernel says.
  Result<PeerCredentials> Peer() const;

  // Ends both directions: whoever waits in Send or Receive, here or at the peer, gets kUnavailable.
  void Shutdown();

 private:
  UniqueFd fd_;
};

// Connects to a listener. kUnavailable when there is none at `path`.
Result<UnixConnection> UnixConnect(const std::string& path, std::chrono::milliseconds timeout);

}  // namespace lockstep::os
