#include "common/os/framing.h"

#include <algorithm>
#include <cstring>

#include "common/base/text.h"

namespace lockstep::os {
namespace {

constexpr size_t kBodyStep = 1 << 20;

}  // namespace

Status SendFramed(UnixConnection& connection, ByteView header, ByteView body, std::span<const int> fds,
                  std::chrono::milliseconds timeout) {
  Bytes bytes;
  bytes.reserve(header.size() + body.size());
  AppendBytes(bytes, header);
  AppendBytes(bytes, body);
  return connection.Send(bytes, fds, timeout);
}

Status CheckStart(const Protocol& protocol, ByteView header) {
  MessageStart start;
  std::memcpy(&start, header.data(), sizeof start);
  const auto refused = [&](const auto&... why) {
    return Status(ErrorCode::kProtocol, Cat(protocol.name, ": ", why...));
  };
  if (start.magic != protocol.magic || start.format != protocol.format) {
    return refused("a message does not start with our magic and format ", protocol.format,
                   "; use matching releases of ", protocol.ends);
  }
  if (start.type == 0 || start.type > protocol.kinds.size()) return refused("unknown message type ", start.type);
  const MessageKind& kind = protocol.kind(start.type);
  if (start.body_bytes <= kind.max_body) return OkStatus();
  return refused(kind.name, " of ", HumanBytes(start.body_bytes), "; the limit is ", HumanBytes(kind.max_body));
}

Result<Bytes> ReceiveBody(UnixConnection& connection, uint32_t body_bytes, const Deadline& deadline) {
  Bytes body;
  while (body.size() < body_bytes) {
    const size_t have = body.size();
    body.resize(std::min<size_t>(body_bytes, have + kBodyStep));
    LS_RETURN_IF_ERROR(connection.Receive(std::span(body).subspan(have), nullptr,
                                          std::chrono::milliseconds(deadline.PollTimeoutMs())));
  }
  return body;
}

}  // namespace lockstep::os
