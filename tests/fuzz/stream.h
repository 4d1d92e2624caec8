// An input as the stream that a peer sent over a unix socket before it hung up.
#pragma once

#include <sys/socket.h>

#include <span>

#include "common/os/unix_socket.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {

inline constexpr size_t kMostStreamBytes = 64 << 10;  // what a socket takes without a receiver

// The receiver's end. REQUIRES stream.size() <= kMostStreamBytes. `fds` come with the first byte.
inline os::UnixConnection StreamOf(ByteView stream, std::span<const int> fds) {
  int ends[2];
  LS_FUZZ_RULE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  os::UnixConnection ours((os::UniqueFd(ends[0])));
  os::UnixConnection theirs((os::UniqueFd(ends[1])));
  if (!stream.empty()) LS_FUZZ_RULE(theirs.Send(stream, fds, std::chrono::milliseconds(1000)).ok());
  LS_FUZZ_RULE(::shutdown(theirs.fd(), SHUT_WR) == 0);
  return ours;
}

}  // namespace lockstep::fuzz
