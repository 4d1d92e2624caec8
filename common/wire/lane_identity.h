// LaneIdentity: which pull and which of its tickets an encrypted lane was opened with, said in clear without saying the
// ticket (FORMAT.md, "Encrypted lanes").
#pragma once

#include <optional>

#include "common/base/bytes.h"
#include "common/base/ids.h"

namespace lockstep::wire {

// The first half of a ticket's SHA-256: it names the ticket, and the ticket cannot be computed from it.
using TicketName = Id128<struct TicketNameTag>;
TicketName NameOf(const Ticket& ticket);

struct LaneIdentity {  // 24 bytes, in the handshake as the identity of the pre-shared key
  uint64_t pull_id = 0;
  TicketName ticket;
};
static_assert(sizeof(LaneIdentity) == 24);

// Decodes an identity; no value when `raw` is none.
std::optional<LaneIdentity> ReadIdentity(ByteView raw);

}  // namespace lockstep::wire
