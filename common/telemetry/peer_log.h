// PeerLog: why connections to a socket of this host failed. Other users' processes are strangers there, and may try as
// often as they like: they get a line at once, and from then on one a minute for each user.
#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/os/unix_socket.h"
#include "common/telemetry/log_limit.h"

namespace lockstep::telemetry {

// Thread-safe.
class PeerLog {
 public:
  // `event` outlives this; `path` is the socket's.
  PeerLog(std::string_view event, std::string path) : event_(event), path_(std::move(path)) {}

  // A warning with path, the peer's pid and uid, and how often that has happened (`times`). REQUIRES !status.ok().
  void Failed(const os::UnixConnection& connection, const Status& status);

 private:
  const std::string_view event_;
  const std::string path_;
  LogLimit strangers_;
};

}  // namespace lockstep::telemetry
