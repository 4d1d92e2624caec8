// Internal to common/os: a path as a socket address.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <string>

#include "common/base/status.h"
#include "common/base/text.h"

namespace lockstep::os {

inline Result<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Status(ErrorCode::kBadData, Cat("socket path '", path, "' must have 1 to ", sizeof address.sun_path - 1,
                                           " characters; choose a shorter directory"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

}  // namespace lockstep::os
