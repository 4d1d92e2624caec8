// The networks that --allow-insecure-network names: their peers may be spoken to in plaintext.
#pragma once

#include <asio/ip/address.hpp>
#include <asio/ip/network_v4.hpp>
#include <asio/ip/network_v6.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace lockstep::net {

class Networks {
 public:
  // "10.0.0.0/8", "fd00::/8". kBadData names a text that is no such network, and one that is every network there is.
  static Result<Networks> Parse(const std::vector<std::string>& cidrs);

  bool empty() const { return v4_.empty() && v6_.empty(); }
  // Whether `peer` is of one of them, or of this host (loopback).
  bool Contain(const asio::ip::address& peer) const;

 private:
  std::vector<asio::ip::network_v4> v4_;
  std::vector<asio::ip::network_v6> v6_;
};

// kPermission: `whose` is at `address`, which no network contains.
Status NotInPlaintext(std::string_view whose, std::string_view address);

}  // namespace lockstep::net
