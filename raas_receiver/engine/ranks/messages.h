// The messages between a rank of an inference engine and the receiver (FORMAT.md, "Messages").
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/os/unique_fd.h"
#include "common/os/unix_socket.h"

namespace lockstep::engine {

inline constexpr uint32_t kEngineRankMagic = 0x5245534c;  // "LSER" as bytes
inline constexpr uint16_t kEngineRankFormat = 5;
inline constexpr uint32_t kMaxAttachBody = 256u << 20;  // and of LAYOUT
inline constexpr uint32_t kMaxEngineBody = 64u << 10;   // of every other message

enum class EngineMessageType : uint16_t {
  kAttach = 1,  // JSON
  kAttached = 2,
  kRefused = 3,  // a sentence; from either end
  kPause = 4,
  kPaused = 5,
  kServe = 6,
  kServing = 7,
  kStage = 8,  // descriptor of a write batch
  kStaged = 9,
  kWrite = 10,
  kWritten = 11,
  kCompare = 12,
  kCompared = 13,  // a byte: whether all was equal
  kDrop = 14,
  kAsk = 15,     // JSON
  kLayout = 16,  // JSON
  kAgree = 17,   // a byte: AgreeStep
  kAgreed = 18,  // a byte: Agreement
};

// How far a receiver has come with a version, where its engine's ranks are on several hosts.
enum class AgreeStep : uint8_t {
  kHeld,     // it holds the version, and has staged what it can
  kPaused,   // its ranks and their server are paused
  kWritten,  // its ranks hold the version
  kServed,   // its ranks serve the version
};

enum class Agreement : uint8_t {
  kNotYet,  // another receiver has not come so far
  kYes,     // all have
  kNo,      // another receiver has a newer version, or has gone back
};

struct EngineMessageHeader {  // 40 bytes; begins as every MessageStart (common/os/framing.h)
  uint32_t magic = kEngineRankMagic;
  uint16_t format = kEngineRankFormat;
  uint16_t type = 0;  // EngineMessageType
  uint32_t body_bytes = 0;
  uint32_t reserved = 0;
  RunId run;
  uint64_t version = 0;
};
static_assert(sizeof(EngineMessageHeader) == 40);
static_assert(offsetof(EngineMessageHeader, run) == 16);
static_assert(offsetof(EngineMessageHeader, version) == 32);

struct EngineMessage {
  EngineMessageType type{};
  VersionRef held;
  Bytes body;
  std::vector<os::UniqueFd> fds;
};

Status SendEngineMessage(os::UnixConnection& connection, const EngineMessage& message, std::span<const int> fds,
                         std::chrono::milliseconds timeout);

// The header of a message: kProtocol for a magic, format, type, version or size that FORMAT.md does not know.
Result<EngineMessageHeader> DecodeEngineHeader(std::span<const std::byte, sizeof(EngineMessageHeader)> bytes);

// One whole message within `timeout`, however slowly it comes. It may carry one descriptor at most.
Result<EngineMessage> ReceiveEngineMessage(os::UnixConnection& connection, std::chrono::milliseconds timeout);

std::string_view Name(EngineMessageType type);  // "ATTACH"

}  // namespace lockstep::engine
