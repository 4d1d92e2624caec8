#include "raas_receiver/engine/ranks/messages.h"

#include <array>
#include <cstring>

#include "common/base/text.h"
#include "common/os/deadline.h"
#include "common/os/framing.h"

namespace lockstep::engine {
namespace {

constexpr os::MessageKind kKinds[] = {
    {"ATTACH", kMaxAttachBody},   {"ATTACHED", kMaxEngineBody}, {"REFUSED", kMaxEngineBody},
    {"PAUSE", kMaxEngineBody},    {"PAUSED", kMaxEngineBody},   {"SERVE", kMaxEngineBody},
    {"SERVING", kMaxEngineBody},  {"STAGE", kMaxEngineBody},    {"STAGED", kMaxEngineBody},
    {"WRITE", kMaxEngineBody},    {"WRITTEN", kMaxEngineBody},  {"COMPARE", kMaxEngineBody},
    {"COMPARED", kMaxEngineBody}, {"DROP", kMaxEngineBody},     {"ASK", kMaxEngineBody},
    {"LAYOUT", kMaxAttachBody},   {"AGREE", kMaxEngineBody},    {"AGREED", kMaxEngineBody},
};
static_assert(std::size(kKinds) == static_cast<size_t>(EngineMessageType::kAgreed));

constexpr os::Protocol kProtocol{.name = "engine rank",
                                 .ends = "plugin and receiver",
                                 .magic = kEngineRankMagic,
                                 .format = kEngineRankFormat,
                                 .kinds = kKinds};

}  // namespace

std::string_view Name(EngineMessageType type) {
  return kProtocol.kind(static_cast<uint16_t>(type)).name;
}

Status SendEngineMessage(os::UnixConnection& connection, const EngineMessage& message, std::span<const int> fds,
                         std::chrono::milliseconds timeout) {
  const EngineMessageHeader header{.type = static_cast<uint16_t>(message.type),
                                   .body_bytes = static_cast<uint32_t>(message.body.size()),
                                   .run = message.held.run,
                                   .version = message.held.version};
  return os::SendFramed(connection, AsBytes(header), message.body, fds, timeout);
}

Result<EngineMessageHeader> DecodeEngineHeader(std::span<const std::byte, sizeof(EngineMessageHeader)> bytes) {
  LS_RETURN_IF_ERROR(os::CheckStart(kProtocol, bytes));
  EngineMessageHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  const auto refused = [&](const auto&... what) {
    const std::string_view name = Name(static_cast<EngineMessageType>(header.type));
    return Status(ErrorCode::kProtocol, Cat("engine rank: ", name, " names ", what...));
  };
  if (header.reserved != 0) return refused(header.reserved, " where 0 belongs");
  if (header.version > kMaxVersion) return refused("version ", header.version, ", which cannot be");
  if (header.version == 0 && !header.run.IsZero()) return refused("a run without a version");
  if (header.version != 0 && header.run.IsZero()) return refused("a version without a run");
  return header;
}

Result<EngineMessage> ReceiveEngineMessage(os::UnixConnection& connection, std::chrono::milliseconds timeout) {
  const os::Deadline deadline(timeout);
  EngineMessage message;
  std::array<std::byte, sizeof(EngineMessageHeader)> raw;
  LS_RETURN_IF_ERROR(connection.Receive(raw, &message.fds, timeout));
  LS_ASSIGN_OR_RETURN(const EngineMessageHeader header, DecodeEngineHeader(raw));
  message.type = static_cast<EngineMessageType>(header.type);
  if (message.fds.size() > 1) {
    return Status(ErrorCode::kProtocol, Cat("engine rank: ", Name(message.type), " came with descriptors"));
  }
  message.held = {header.run, header.version};
  LS_ASSIGN_OR_RETURN(message.body, os::ReceiveBody(connection, header.body_bytes, deadline));
  return message;
}

}  // namespace lockstep::engine
