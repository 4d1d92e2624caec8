#include "common/net/networks.h"

#include <algorithm>

#include "common/base/text.h"

namespace lockstep::net {
namespace {

// An address is of the network that has its first bits.
template <typename Network>
bool OneContains(const std::vector<Network>& networks, const auto& address) {
  return std::ranges::any_of(networks, [&](const Network& network) {
    return Network(address, network.prefix_length()).network() == network.network();
  });
}

// Keeps a good one in `networks`.
template <typename Network>
bool Take(const Network& network, const asio::error_code& error, std::vector<Network>& networks) {
  if (error || network.prefix_length() == 0 || network != network.canonical()) return false;
  networks.push_back(network);
  return true;
}

}  // namespace

Result<Networks> Networks::Parse(const std::vector<std::string>& cidrs) {
  Networks networks;
  for (const std::string& cidr : cidrs) {
    asio::error_code error;
    const bool good = cidr.find(':') == std::string::npos
                          ? Take(asio::ip::make_network_v4(cidr, error), error, networks.v4_)
                          : Take(asio::ip::make_network_v6(cidr, error), error, networks.v6_);
    if (good) continue;
    return Status(ErrorCode::kBadData,
                  Cat("'", CleanText(cidr, 128),
                      "' does not name a network; write its first address and the length of its prefix, ",
                      "10.0.0.0/8 or fd00::/8"));
  }
  return networks;
}

bool Networks::Contain(const asio::ip::address& peer) const {
  if (peer.is_loopback()) return true;
  if (peer.is_v4()) return OneContains(v4_, peer.to_v4());
  const asio::ip::address_v6 v6 = peer.to_v6();
  if (v6.is_v4_mapped()) return Contain(asio::ip::make_address_v4(asio::ip::v4_mapped, v6));
  return OneContains(v6_, v6);
}

Status NotInPlaintext(std::string_view whose, std::string_view address) {
  return {ErrorCode::kPermission, Cat(whose, " is at ", address,
                                      ", which is of no network that allow-insecure-network names: nothing is taken ",
                                      "in plaintext from there; use TLS, or name its network")};
}

}  // namespace lockstep::net
