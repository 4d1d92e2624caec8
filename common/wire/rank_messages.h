// The messages between ranks and the agent on the unix socket (trainer_agent/run/FORMAT.md, "The rank protocol").
//
// Every message is a RankMessageHeader and `body_bytes` bytes. A rank says HELLO, then OPEN; BEGIN, COMMIT and ABORT
// are each answered by one reply or an ERROR; BATCHES and UNCHANGED are not answered, and what is wrong with them is
// the next COMMIT's answer.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "common/os/unique_fd.h"
#include "common/os/unix_socket.h"

namespace lockstep::wire {

inline constexpr uint32_t kRankMagic = 0x4b52534c;  // "LSRK" as bytes
inline constexpr uint16_t kRankFormat = 3;
inline constexpr uint32_t kMaxRankBody = 256u << 20;
inline constexpr uint32_t kMaxRanks = 4096;

enum class RankMessageType : uint16_t {
  kOpen = 1,        // OpenBody, model name, encoded layout, share; on reconnection the three segments' descriptors
  kOpened = 2,      // OpenedBody; descriptors of control, slot 0, slot 1
  kBegin = 3,       // VersionBody, then the version's guard (trainer_agent/run/guard.h), if it has one
  kBegun = 4,       // BegunBody
  kBatches = 5,     // VersionBody, then numbers of batches of the rank's share, 4 bytes each: their bytes are final
  kCommit = 6,      // VersionBody, then the version's label, if this rank gives one
  kAbort = 7,       // VersionBody, then a sentence: why, for the other ranks
  kDone = 8,        // VersionBody: the newest version committed in this run, 0 for none
  kError = 9,       // ErrorBody, then a sentence
  kUnchanged = 10,  // as kBatches: their bytes are final and equal those of the other slot, the version before
  kHello = 11,      // a peer's line (common/peer/peer.h), from either side
  // In place of kOpen, a request of the trainer's process as JSON (common/rpc/message_json.h), answered by kAnswer or
  // kError.
  kAwaitServed = 12,   // v1::AwaitServedRequest
  kAnswer = 13,        // v1::AwaitServedResponse, also where it is not served; or v1::VersionChanges
  kAwaitChanges = 14,  // v1::AwaitChangesRequest
};
static_assert(sizeof(StridedRange) == 32);

struct RankMessageHeader {  // 16 bytes; begins as every MessageStart (common/os/framing.h)
  uint32_t magic = kRankMagic;
  uint16_t format = kRankFormat;
  uint16_t type = 0;  // RankMessageType
  uint32_t body_bytes = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(RankMessageHeader) == 16);

struct OpenBody {  // 40 bytes
  uint32_t rank = 0;
  uint32_t ranks = 0;
  RunId run;  // zero: a new run, or the new run that another rank of this trainer has just started
  uint32_t model_bytes = 0;
  uint32_t layout_bytes = 0;
  uint32_t batches = 0;  // of the share: 4 bytes each, Share::batch_ends
  uint32_t ranges = 0;   // of the share
};
static_assert(sizeof(OpenBody) == 40);

struct OpenedBody {  // 48 bytes
  RunId run;
  uint64_t newest_version = 0;  // committed in this run; 0 for none
  uint64_t image_bytes = 0;
  uint64_t data_offset = 0;
  uint64_t control_bytes = 0;
};
static_assert(sizeof(OpenedBody) == 48);

struct VersionBody {  // 8 bytes
  uint64_t version = 0;
};

struct BegunBody {  // 8 bytes
  uint32_t slot = 0;
  uint32_t reserved = 0;
};

struct ErrorBody {    // 4 bytes
  uint32_t code = 0;  // ErrorCode
};

struct RankMessage {
  RankMessageType type{};
  Bytes body;
  std::vector<os::UniqueFd> fds;
};

Status SendRankMessage(os::UnixConnection& connection, RankMessageType type, ByteView body, std::span<const int> fds,
                       std::chrono::milliseconds timeout);
// Waits up to `timeout` for a message to begin, and half a minute for its body. kProtocol for anything that is no
// well-formed header or too large a body.
Result<RankMessage> ReceiveRankMessage(os::UnixConnection& connection, std::chrono::milliseconds timeout);

// What a rank writes of every version: batches of ranges of the data section. The rank reports a batch by its number
// once the batch's bytes are final. The shares of all ranks have every byte once.
struct Share {
  std::vector<uint32_t> batch_ends;  // of each batch, in `ranges`; a batch begins where the one before ends
  std::vector<StridedRange> ranges;

  // Appends a batch and returns its number.
  uint32_t Add(std::span<const StridedRange> batch);
  std::span<const StridedRange> RangesOf(uint32_t batch) const;  // REQUIRES batch < batch_ends.size()
  uint64_t BytesOf(uint32_t batch) const;                        // likewise
  bool operator==(const Share&) const = default;
};

// The body of a kOpen message. REQUIRES the body to be below kMaxRankBody.
Bytes EncodeOpen(OpenBody open, std::string_view model, const model::ModelLayout& layout, const Share& share);

// The body of a kOpen message, decoded. The model's name is not checked, and of the share only that batches follow each
// other.
struct Opening {
  std::string model;
  std::shared_ptr<const model::ModelLayout> layout;
  uint32_t rank = 0;
  uint32_t ranks = 0;  // at most kMaxRanks
  RunId run;
  Share share;
};
// kProtocol when it is malformed; else as ModelLayout::Decode.
Result<Opening> DecodeOpen(ByteView body);

// The numbers that follow the version in a kBatches or kUnchanged message; kProtocol unless they are whole.
Result<std::vector<uint32_t>> DecodeBatches(ByteView batches);

Bytes EncodeError(const Status& status);
// The error that a kError message carries; kProtocol when it is malformed.
Status DecodeError(ByteView body);

}  // namespace lockstep::wire
