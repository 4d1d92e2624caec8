// The local path of a pull: what travels on the agent's unix socket between an agent and a receiver of one host
// (FORMAT.md, "The local path").
//
// The receiver opens it as it opens a lane, with LaneHello and LaneWelcome. Then it asks, one request at a time, for
// descriptors: of the memory that holds a version, and of the files that hold deltas. It copies out of them itself and
// checks what it copied, for the trainer may write into that memory at any moment.
#pragma once

#include "common/wire/frame.h"

namespace lockstep::wire {

inline constexpr uint32_t kLocalRequestMagic = 0x514c534c;  // "LSLQ" as bytes
inline constexpr uint32_t kLocalAnswerMagic = 0x414c534c;   // "LSLA"

enum class LocalKind : uint8_t {
  kSlot = 1,     // the memory of `version`, and the hashes of its blocks
  kPayload = 2,  // the file of delta payload `payload_id`
  kAlive = 3,    // nothing: the receiver still copies, and the pull must not expire
};

struct LocalRequest {  // 32 bytes, receiver -> agent
  uint32_t magic = kLocalRequestMagic;
  uint8_t kind = 0;  // LocalKind
  uint8_t reserved = 0;
  uint16_t bytes = 32;
  uint64_t version = 0;     // kSlot: this version or an error; 0: the newest one. Else 0
  uint64_t payload_id = 0;  // kPayload: of a DeltaStep. Else 0
  uint64_t check = 0;       // xxh3-64 of the bytes before
};
static_assert(sizeof(LocalRequest) == 32);

struct LocalAnswer {  // 56 bytes, agent -> receiver; with one descriptor when it answers kSlot or kPayload
  uint32_t magic = kLocalAnswerMagic;
  uint16_t bytes = 56;
  uint16_t reserved0 = 0;
  uint32_t code = 0;  // ErrorCode; the connection lives on after an error
  uint32_t reserved1 = 0;
  uint64_t version = 0;     // kSlot: that the memory holds
  uint64_t offset = 0;      // of the data in the file
  uint64_t data_bytes = 0;  // kSlot: of the model. kPayload: of the whole payload
  uint64_t tail_bytes = 0;  // that follow. An error's sentence; kSlot: 8 per block, its xxh3-64
  uint64_t check = 0;
};
static_assert(sizeof(LocalAnswer) == 56);

// kProtocol when magic, size or an enum value is wrong, saying which; kCorrupt when the check is.
Status CheckLocalRequest(const LocalRequest& request);
// As CheckLocalRequest, and kProtocol when the tail is too long for a model of `layout_blocks` blocks.
Status CheckLocalAnswer(const LocalAnswer& answer, uint32_t layout_blocks);

}  // namespace lockstep::wire
