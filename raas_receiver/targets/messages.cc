#include "raas_receiver/targets/messages.h"

#include <algorithm>
#include <array>

#include "common/base/text.h"
#include "common/os/deadline.h"

namespace lockstep {
namespace {

constexpr size_t kBodyStep = 1 << 20;
constexpr std::array<std::string_view, 8> kNames{"",     "ATTACH", "ATTACHED", "REFUSED",
                                                 "HOLD", "HELD",   "SERVE",    "SERVING"};

uint32_t MaxBody(EngineMessageType type) {
  return type == EngineMessageType::kAttach ? kMaxAttachBody : kMaxEngineBody;
}

std::chrono::milliseconds Left(const Deadline& deadline) {
  return std::chrono::milliseconds(deadline.PollTimeoutMs());
}

}  // namespace

std::string_view Name(EngineMessageType type) {
  return kNames[static_cast<size_t>(type)];
}

Status SendEngineMessage(UnixConnection& connection, const EngineMessage& message, std::span<const int> fds,
                         std::chrono::milliseconds timeout) {
  Bytes bytes;
  bytes.reserve(sizeof(EngineMessageHeader) + message.body.size());
  Append(bytes, EngineMessageHeader{.type = static_cast<uint16_t>(message.type),
                                    .body_bytes = static_cast<uint32_t>(message.body.size()),
                                    .half = message.half,
                                    .run = message.held.run,
                                    .version = message.held.version});
  AppendBytes(bytes, message.body);
  return connection.Send(bytes, fds, timeout);
}

Result<EngineMessageHeader> DecodeEngineHeader(std::span<const std::byte, sizeof(EngineMessageHeader)> bytes) {
  EngineMessageHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  const auto wrong = [](const auto&... what) { return Status(ErrorCode::kProtocol, Cat("engine rank: ", what...)); };
  if (header.magic != kEngineRankMagic || header.format != kEngineRankFormat) {
    return wrong("a message does not start with our magic and format ", kEngineRankFormat,
                 "; use matching releases of plugin and receiver");
  }
  if (header.type == 0 || header.type >= kNames.size()) return wrong("unknown message type ", header.type);
  const auto type = static_cast<EngineMessageType>(header.type);
  if (header.body_bytes > MaxBody(type)) {
    return wrong(Name(type), " of ", HumanBytes(header.body_bytes), "; the limit is ", HumanBytes(MaxBody(type)));
  }
  if (header.half > 1) return wrong(Name(type), " names half ", header.half, "; there are two at most");
  if (header.version > kMaxVersion) return wrong(Name(type), " names version ", header.version, ", which cannot be");
  if ((header.version == 0) != header.run.IsZero())
    return wrong(Name(type), " has a run without a version, or a version without a run");
  return header;
}

Result<EngineMessage> ReceiveEngineMessage(UnixConnection& connection, std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  EngineMessage message;
  std::array<std::byte, sizeof(EngineMessageHeader)> raw;
  LS_RETURN_IF_ERROR(connection.Receive(raw, &message.fds, Left(deadline)));
  LS_ASSIGN_OR_RETURN(const EngineMessageHeader header, DecodeEngineHeader(raw));
  message.type = static_cast<EngineMessageType>(header.type);
  if (message.type != EngineMessageType::kAttach && message.fds.size() > 1) {
    return Status(ErrorCode::kProtocol, Cat("engine rank: ", Name(message.type), " came with descriptors"));
  }
  message.held = {header.run, header.version};
  message.half = header.half;
  // Memory follows the bytes that come, not those that are announced.
  while (message.body.size() < header.body_bytes) {
    const size_t have = message.body.size();
    message.body.resize(std::min<size_t>(header.body_bytes, have + kBodyStep));
    LS_RETURN_IF_ERROR(connection.Receive(std::span(message.body).subspan(have), nullptr, Left(deadline)));
  }
  return message;
}

}  // namespace lockstep
