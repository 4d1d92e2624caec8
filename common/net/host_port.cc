#include "common/net/host_port.h"

#include <arpa/inet.h>

#include <charconv>

#include "common/base/text.h"

namespace lockstep::net {
namespace {

// A peer may have said it.
std::string Shown(std::string_view text) {
  return CleanText(WithoutPasswords(text), 128);
}

Status Malformed(std::string_view text, std::string_view why) {
  return {ErrorCode::kBadData, Cat("address '", Shown(text), "' ", why, "; write host:port or [ipv6]:port")};
}

}  // namespace

std::string HostPort::ToString() const {
  const bool ipv6 = host.find(':') != std::string::npos;
  return ipv6 ? Cat("[", host, "]:", port) : Cat(host, ":", port);
}

bool HostPort::IsLoopback() const {
  if (host == "localhost") return true;
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

Result<HostPort> ParseHostPort(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return Malformed(text, "has no port");
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty()) return Malformed(text, "has no host");
  if (host.find_first_of("[] /@") != std::string_view::npos) return Malformed(text, "has a malformed host");
  if ((host.find(':') != std::string_view::npos) != bracketed) return Malformed(text, "has a malformed IPv6 host");
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size()) return Malformed(text, "has no port in 0..65535");
  return HostPort{std::string(host), port};
}

std::string ToString(const std::optional<HostPort>& address, int bound_port) {
  if (!address) return "";
  return HostPort{address->host, bound_port == 0 ? address->port : static_cast<uint16_t>(bound_port)}.ToString();
}

Result<ControlAddress> ParseControlAddress(const std::string& text) {
  constexpr std::string_view kUnix = "unix:";
  if (!text.starts_with(kUnix)) {
    LS_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(text));
    return ControlAddress(address);
  }
  if (text.size() <= kUnix.size() || text[kUnix.size()] != '/') {
    return Status(ErrorCode::kBadData, Cat("address '", Shown(text), "' has no absolute path; write unix:/path"));
  }
  ControlAddress address;
  address.text = text;
  address.host = "127.0.0.1";
  return address;
}

Result<HostPort> CheckListenAddress(std::string_view name, std::string_view text, bool beyond_loopback) {
  Result<HostPort> address = ParseHostPort(text);
  if (!address.ok()) return Status(ErrorCode::kConfig, Cat(name, ": ", address.status().message()));
  if (address->IsLoopback() || beyond_loopback) return address;
  return Status(ErrorCode::kConfig,
                Cat(name, ": ", text, " is not a loopback address, and without credentials nothing listens beyond it; ",
                    "use 127.0.0.1, give --tls-cert, --tls-key and --tls-ca, or name the network with ",
                    "--allow-insecure-network CIDR"));
}

}  // namespace lockstep::net
