// Where a source of blocks puts what it fetched (block_source.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/payload/payload.h"
#include "common/wire/frame.h"

namespace lockstep::pull {

// Takes the blocks of one fetch, each checked against what was asked for. Called by several threads at once, but by one
// at a time for one block.
class BlockSink {
 public:
  virtual ~BlockSink() = default;
  // Memory of frame.payload_bytes that the payload is to be read into, or an empty span: then Put gets it from the
  // source's own.
  virtual std::span<std::byte> Destination(const wire::FrameHeader& frame) = 0;
  // The whole payload; it has the frame's hash. A source may fail between Destination and Put: the block then comes
  // again. An error ends the connection that the block came on.
  virtual Status Put(const wire::FrameHeader& frame, ByteView payload) = 0;
  // A share of a streaming delta has ended, which leads to `target`. Errors as Put's.
  virtual Status EndShare(Version) { return OkStatus(); }
};

// The entry of a delta that came as `frame`.
inline payload::DeltaBlock EntryOf(const wire::FrameHeader& frame, Bytes data) {
  return {.block = frame.block,
          .codec = static_cast<payload::Codec>(frame.codec),
          .changes = frame.changes,
          .target_hash = frame.block_hash,
          .data_hash = frame.payload_hash,
          .data = std::move(data)};
}

// Takes the deltas of one fetch, entry by entry or whole.
class DeltaSink : public BlockSink {
 public:
  std::span<std::byte> Destination(const wire::FrameHeader&) final { return {}; }
  Status Put(const wire::FrameHeader& frame, ByteView payload) final {
    return PutEntry(frame.payload_id, EntryOf(frame, Bytes(payload.begin(), payload.end())));
  }

  // An entry of the delta `payload_id`, one of those asked for; it has its hashes. kProtocol when it is more than was
  // planned.
  virtual Status PutEntry(uint64_t payload_id, payload::DeltaBlock entry) = 0;
  // The whole of it, every hash checked. kProtocol when it is not the delta that was planned.
  virtual Status PutPayload(uint64_t payload_id, std::shared_ptr<const payload::Payload> payload) = 0;
};

}  // namespace lockstep::pull
