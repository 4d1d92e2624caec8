#include "common/net/server_user.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/text.h"

namespace lockstep::net {
namespace {

using asio::ip::tcp;

constexpr std::string_view kListens = "0A";

// A row of /proc/net/tcp or tcp6.
struct Socket {
  tcp::endpoint here, there;
  bool listens = false;
  uid_t user = 0;
};

template <typename T>
bool ReadNumber(std::string_view text, int base, T& number) {
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return read.ec == std::errc() && read.ptr == text.data() + text.size();
}

asio::ip::address Plain(const asio::ip::address& address) {
  if (!address.is_v6() || !address.to_v6().is_v4_mapped()) return address;
  return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
}

// "0100007F:1F90": words as they are in memory, each as a number, and the port.
std::optional<tcp::endpoint> ReadEndpoint(std::string_view text) {
  std::array<uint32_t, 4> words{};
  const size_t colon = text.find(':');
  if (colon != 8 && colon != 32) return std::nullopt;
  for (size_t i = 0; i < colon / 8; ++i) {
    if (!ReadNumber(text.substr(8 * i, 8), 16, words.at(i))) return std::nullopt;
  }
  uint16_t port = 0;
  if (!ReadNumber(text.substr(colon + 1), 16, port)) return std::nullopt;
  if (colon == 8) {
    asio::ip::address_v4::bytes_type bytes;
    std::memcpy(bytes.data(), words.data(), bytes.size());
    return tcp::endpoint(asio::ip::address_v4(bytes), port);
  }
  asio::ip::address_v6::bytes_type bytes;
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return tcp::endpoint(Plain(asio::ip::address_v6(bytes)), port);
}

std::optional<Socket> ReadSocket(const std::string& row) {
  std::istringstream fields(row);
  std::string number, here, there, state, queues, timer, retransmits, user;
  fields >> number >> here >> there >> state >> queues >> timer >> retransmits >> user;
  const auto at = ReadEndpoint(here), peer = ReadEndpoint(there);
  Socket socket{.listens = state == kListens};
  if (!at || !peer || !ReadNumber(user, 10, socket.user)) return std::nullopt;
  socket.here = *at;
  socket.there = *peer;
  return socket;
}

// Which listeners get a connection to `server`, the first of these that there are: at its address, at any of its kind,
// at any.
int Rank(const Socket& socket, const tcp::endpoint& server) {
  if (socket.here.address() == server.address()) return 0;
  if (!socket.here.address().is_unspecified()) return 3;
  if (socket.here.address().is_v4() == server.address().is_v4()) return 1;
  return server.address().is_v4() ? 2 : 3;
}

}  // namespace

Status CheckServerUser(const tcp::endpoint& here, const tcp::endpoint& server, uid_t user) {
  const tcp::endpoint to(Plain(server.address()), server.port()), from(Plain(here.address()), here.port());
  std::vector<Socket> ends;  // that may have it: who listens, and who has taken it
  int rank = 3;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream rows(table);
    for (std::string row; std::getline(rows, row);) {
      const auto socket = ReadSocket(row);
      if (!socket || socket->here.port() != to.port()) continue;
      if (!socket->listens && socket->here == to && socket->there == from) ends.push_back(*socket);
      if (!socket->listens || Rank(*socket, to) > rank) continue;
      if (Rank(*socket, to) < rank) std::erase_if(ends, &Socket::listens);
      rank = Rank(*socket, to);
      if (rank < 3) ends.push_back(*socket);
    }
  }
  const std::string where = Cat(to.address().to_string(), ", port ", to.port());
  if (ends.empty()) {
    return {ErrorCode::kUnavailable, Cat("no process of this host has the connection to ", where)};
  }
  for (const Socket& end : ends) {
    if (end.user == user || end.user == ::geteuid() || end.user == 0) continue;
    return {ErrorCode::kPermission, Cat("a process of uid ", end.user, " has ", where, ", and may be an impostor")};
  }
  return OkStatus();
}

}  // namespace lockstep::net
