#include "common/wire/lane_identity.h"

#include <openssl/sha.h>

#include <algorithm>

namespace lockstep::wire {

TicketName NameOf(const Ticket& ticket) {
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest;
  SHA256(ticket.bytes.data(), ticket.bytes.size(), digest.data());
  TicketName name;
  std::copy_n(digest.begin(), name.bytes.size(), name.bytes.begin());
  return name;
}

std::optional<LaneIdentity> ReadIdentity(ByteView raw) {
  LaneIdentity identity;
  ByteReader reader(raw);
  if (!reader.Take(identity) || !reader.empty()) return std::nullopt;
  return identity;
}

}  // namespace lockstep::wire
