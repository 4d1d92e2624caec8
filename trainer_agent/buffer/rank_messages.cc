#include "trainer_agent/buffer/rank_messages.h"

#include <algorithm>

#include "common/base/text.h"

namespace lockstep {
namespace {

constexpr size_t kBodyStep = 1 << 20;
constexpr std::chrono::milliseconds kBodyTimeout{30'000};

}  // namespace

Status SendMessage(UnixConnection& connection, RankMessage type, ByteView body, std::span<const int> fds,
                   std::chrono::milliseconds timeout) {
  Bytes bytes;
  bytes.reserve(sizeof(MessageHeader) + body.size());
  Append(bytes, MessageHeader{.type = static_cast<uint16_t>(type), .body_bytes = static_cast<uint32_t>(body.size())});
  AppendBytes(bytes, body);
  return connection.Send(bytes, fds, timeout);
}

Result<Message> ReceiveMessage(UnixConnection& connection, std::chrono::milliseconds timeout) {
  Message message;
  MessageHeader header;
  LS_RETURN_IF_ERROR(connection.Receive(std::as_writable_bytes(std::span(&header, 1)), &message.fds, timeout));
  if (header.magic != kRankMagic || header.format != kRankFormat || header.reserved != 0) {
    return Status(ErrorCode::kProtocol, Cat("rank protocol: a message does not start with our magic and format ",
                                            kRankFormat, "; use matching releases of plugin and agent"));
  }
  if (header.type < static_cast<uint16_t>(RankMessage::kOpen) ||
      header.type > static_cast<uint16_t>(RankMessage::kUnchanged)) {
    return Status(ErrorCode::kProtocol, Cat("rank protocol: unknown message type ", header.type));
  }
  if (header.body_bytes > kMaxRankBody) {
    return Status(ErrorCode::kProtocol, Cat("rank protocol: a message of ", HumanBytes(header.body_bytes),
                                            "; the limit is ", HumanBytes(kMaxRankBody)));
  }
  message.type = static_cast<RankMessage>(header.type);
  // Memory follows the bytes that come, not those that are announced; and they may not take for ever.
  while (message.body.size() < header.body_bytes) {
    const size_t have = message.body.size();
    message.body.resize(std::min<size_t>(header.body_bytes, have + kBodyStep));
    LS_RETURN_IF_ERROR(connection.Receive(std::span(message.body).subspan(have), nullptr, kBodyTimeout));
  }
  return message;
}

Bytes EncodeError(const Status& status) {
  Bytes body;
  Append(body, ErrorBody{static_cast<uint32_t>(status.code())});
  AppendBytes(body, AsBytes(std::string_view(status.message())));
  return body;
}

Status DecodeError(ByteView body) {
  ByteReader reader(body);
  ErrorBody error;
  if (!reader.Take(error) || error.code == 0 || error.code > static_cast<uint32_t>(ErrorCode::kInternal)) {
    return {ErrorCode::kProtocol, "rank protocol: a malformed error message"};
  }
  return {static_cast<ErrorCode>(error.code), std::string(AsText(reader.rest()))};
}

}  // namespace lockstep
