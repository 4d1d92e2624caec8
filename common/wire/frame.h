// The data plane: what travels on a lane, one TCP connection of a pull (FORMAT.md).
//
// The receiver opens a lane with LaneHello and is answered by LaneWelcome. From then on it sends BlockRequests, several
// ahead if it likes, and the agent answers each, in order, with the frames of the blocks asked for and one kRequestEnd
// or kError. So a resumed lane asks for what is missing, a repair asks for one full block, and load spreads by itself.
#pragma once

#include <cstdint>

#include "common/base/bytes.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/payload/block_codec.h"

namespace lockstep::wire {

inline constexpr uint16_t kWireFormat = 2;
inline constexpr uint32_t kHelloMagic = 0x4f4c534c;    // "LSLO" as bytes
inline constexpr uint32_t kWelcomeMagic = 0x4157534c;  // "LSWA"
inline constexpr uint32_t kRequestMagic = 0x5152534c;  // "LSRQ"
inline constexpr uint32_t kFrameMagic = 0x5246534c;    // "LSFR"
inline constexpr uint32_t kMaxErrorText = 4096;
inline constexpr uint32_t kMaxStreamShares = 64;

struct LaneHello {  // 48 bytes, receiver -> agent
  uint32_t magic = kHelloMagic;
  uint16_t format = kWireFormat;
  uint16_t bytes = 48;
  uint64_t pull_id = 0;
  Ticket ticket;
  uint32_t lane = 0;  // which lane of the pull this is, for logs
  uint32_t reserved = 0;
  uint64_t check = 0;  // xxh3-64 of the bytes before
};
static_assert(sizeof(LaneHello) == 48);

struct LaneWelcome {  // 24 bytes, agent -> receiver; a refusal is a closed connection after a non-zero code
  uint32_t magic = kWelcomeMagic;
  uint16_t format = kWireFormat;
  uint16_t bytes = 24;
  uint32_t code = 0;  // ErrorCode; 0 admits the lane
  uint32_t reserved = 0;
  uint64_t check = 0;
};
static_assert(sizeof(LaneWelcome) == 24);

enum class RequestKind : uint8_t {
  kFull = 1,    // blocks as they are in the pull's target version, or the newest one when that is gone
  kDelta = 2,   // the entries of delta payload `payload_id` for the blocks in the range
  kStream = 3,  // a share of the delta that starts at version `exact_version`, its blocks as they are made
};

struct BlockRequest {  // 48 bytes, receiver -> agent
  uint32_t magic = kRequestMagic;
  uint8_t kind = 0;  // RequestKind
  uint8_t reserved0 = 0;
  uint16_t bytes = 48;
  uint32_t request_id = 0;   // the receiver's own, echoed in every answering frame
  uint32_t first_block = 0;  // kStream: the share, from 0
  uint32_t block_count = 0;  // at least 1. kStream: of so many shares: block b belongs to share b % block_count
  uint32_t reserved1 = 0;
  uint64_t payload_id = 0;     // of a DeltaStep; 0 for kFull and kStream
  uint64_t exact_version = 0;  // kFull: this version or an error (repair); 0: any, not older than the plan's target.
                               // kStream: the delta's base, that the receiver holds
  uint64_t check = 0;
};
static_assert(sizeof(BlockRequest) == 48);

enum class FrameType : uint8_t {
  kBlock = 1,
  kRequestEnd = 2,  // `block` holds the number of kBlock frames sent for the request
  kError = 3,       // the request failed: `block` holds the ErrorCode, the payload a sentence; the lane lives on
};

struct FrameHeader {  // 72 bytes, agent -> receiver, followed by payload_bytes bytes
  uint32_t magic = kFrameMagic;
  uint8_t type = 0;     // FrameType
  uint8_t codec = 0;    // Codec of a kBlock frame; kRaw for full blocks
  uint16_t bytes = 72;  // of this header
  uint32_t request_id = 0;
  uint32_t block = 0;
  uint64_t version = 0;       // the version that the block is of once the frame is applied
  uint64_t base_version = 0;  // delta: the version it applies to; 0 for full blocks
  uint64_t block_hash = 0;    // xxh3-64 of the whole block at `version`
  uint64_t payload_hash = 0;  // xxh3-64 of the payload; for kRaw it equals block_hash
  uint32_t payload_bytes = 0;
  uint32_t changes = 0;     // changed elements of a delta block
  uint64_t payload_id = 0;  // of the DeltaStep; 0 for full blocks
  uint64_t check = 0;       // xxh3-64 of the header bytes before
};
static_assert(sizeof(FrameHeader) == 72);

// Sets `check` of any of the four structs, and of those of local.h.
template <typename T>
void Seal(T& message);

// kProtocol when magic, format, size or an enum value is wrong, saying which; kCorrupt when the check is. For
// FrameHeader also when payload_bytes is over what its type allows for blocks of `block_bytes` (a coded block is never
// larger than the block).
Status CheckHello(const LaneHello& hello);
Status CheckWelcome(const LaneWelcome& welcome);
Status CheckRequest(const BlockRequest& request, uint32_t layout_blocks);
Status CheckFrame(const FrameHeader& frame, uint32_t block_bytes, uint32_t layout_blocks);
// kCorrupt when the payload does not have the header's payload_hash.
Status CheckFramePayload(const FrameHeader& frame, ByteView payload);

}  // namespace lockstep::wire
