// The accepting side of unix-socket connections, at a path that it owns.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/os/unique_fd.h"
#include "common/os/unix_socket.h"

namespace lockstep::os {

// Move-only. One thread accepts; Wake() may be called from any other. The destructor removes the socket file.
class UnixListener {
 public:
  // Makes the directory (0750) where it is missing, binds (0660) and listens. A socket file without a listener is
  // replaced. The file is of `group`, where one is given: this user must be in it, or root. kUnavailable when a process
  // listens there; kBadData when `path` is something else than a socket.
  static Result<UnixListener> Create(const std::string& path, std::optional<gid_t> group = std::nullopt);

  UnixListener(UnixListener&&) noexcept = default;
  UnixListener& operator=(UnixListener&&) = delete;
  ~UnixListener();

  const std::string& path() const { return path_; }

  // The next connection. kDeadline when none came in time; kCancelled once Wake() was called.
  Result<UnixConnection> Accept(std::chrono::milliseconds timeout);

  // Makes the present and every later Accept() return kCancelled.
  void Wake();

 private:
  UnixListener(std::string path, UniqueFd socket, UniqueFd wake);

  std::string path_;
  UniqueFd socket_;
  UniqueFd wake_;
};

}  // namespace lockstep::os
