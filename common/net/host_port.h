// Where something listens: host and port, as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace lockstep::net {

struct HostPort {
  std::string host;  // a name or an address, IPv6 without brackets
  uint16_t port = 0;

  bool operator==(const HostPort&) const = default;

  // "host:port", "[::1]:7700".
  std::string ToString() const;

  // localhost, 127.0.0.0/8 or ::1. Any other name is not, whatever it resolves to.
  bool IsLoopback() const;
};

// The reverse of ToString(). kBadData, naming `text`, for anything else; port 0 is allowed (a listener then picks one).
Result<HostPort> ParseHostPort(std::string_view text);

// Parses a listen address of the setting `name`, which must be loopback unless `beyond_loopback`. kConfig.
Result<HostPort> CheckListenAddress(std::string_view name, std::string_view text, bool beyond_loopback);

}  // namespace lockstep::net
