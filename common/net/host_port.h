// Where something listens: host and port, as people write them.
#pragma once

#include <cstdint>
#include <optional>
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

// "host:port", with `bound_port` in the place of the address's own when it is given; empty for no address.
std::string ToString(const std::optional<HostPort>& address, int bound_port = 0);

// Where a daemon's control plane is: host:port, or a unix socket of this host.
struct ControlAddress {
  ControlAddress() = default;
  ControlAddress(const HostPort& address) : text(address.ToString()), host(address.host) {}  // NOLINT: implicit

  std::string text;  // "host:port" or "unix:/path", as people write it and gRPC takes it
  std::string host;  // of its lanes, where they are not said to be elsewhere: loopback for a socket

  bool IsSocket() const { return text.starts_with("unix:"); }
};

// kBadData, naming `text`, when it is neither host:port nor unix:PATH with an absolute path.
Result<ControlAddress> ParseControlAddress(const std::string& text);

// The reverse of ToString(). kBadData, naming `text`, for anything else; port 0 is allowed (a listener then picks one).
Result<HostPort> ParseHostPort(std::string_view text);

// Parses a listen address of the setting `name`, which must be loopback unless `beyond_loopback`. kConfig.
Result<HostPort> CheckListenAddress(std::string_view name, std::string_view text, bool beyond_loopback);

}  // namespace lockstep::net
