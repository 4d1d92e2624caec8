// Framing: messages over a unix socket, each a header of fixed size and a body of the length that the header names.
//
// Each protocol has its own header, which begins with a MessageStart, and its own table of types. This file has what
// all protocols share: how a message is sent, which starts are refused, how a body is received. Descriptors travel with
// the first byte of the header.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/os/deadline.h"
#include "common/os/unique_fd.h"
#include "common/os/unix_socket.h"

namespace lockstep::os {

struct MessageStart {  // 12 bytes, little-endian
  uint32_t magic = 0;
  uint16_t format = 0;
  uint16_t type = 0;
  uint32_t body_bytes = 0;
};
static_assert(sizeof(MessageStart) == 12);

struct MessageKind {
  std::string_view name;  // "OPEN"
  uint32_t max_body = 0;
};

struct Protocol {
  std::string_view name;  // begins every error
  std::string_view ends;  // "plugin and agent": their releases must match
  uint32_t magic = 0;
  uint16_t format = 0;
  std::span<const MessageKind> kinds;  // of type 1, 2, ...

  // REQUIRES a type that CheckStart accepted.
  const MessageKind& kind(uint16_t type) const { return kinds[type - 1]; }
};

// `header` and `body` as one message; `fds` stay the caller's. Errors as UnixConnection::Send.
Status SendFramed(UnixConnection& connection, ByteView header, ByteView body, std::span<const int> fds,
                  std::chrono::milliseconds timeout);

// kProtocol for another magic or format, a type that is not in the table, or a body over its type's limit.
// REQUIRES header.size() >= sizeof(MessageStart).
Status CheckStart(const Protocol& protocol, ByteView header);

// Receives the body that follows a header. Memory grows with the bytes that arrive, and not by the announced length.
// Descriptors are kProtocol here. Errors as UnixConnection::Receive.
Result<Bytes> ReceiveBody(UnixConnection& connection, uint32_t body_bytes, const Deadline& deadline);

}  // namespace lockstep::os
