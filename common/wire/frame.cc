#include "common/wire/frame.h"

#include "common/wire/envelope.h"

namespace lockstep::wire {
namespace {

Status CheckFormat(const char* what, uint16_t format) {
  if (format == kWireFormat) return OkStatus();
  return Foreign(what, Cat("wire format ", format, " is not known here (known: ", kWireFormat,
                           "); use matching releases on both ends"));
}

Status CheckStreamRequest(const BlockRequest& request) {
  if (request.payload_id != 0 || request.exact_version == 0) {
    return Foreign("block request", "a stream request names the version that it starts from, and no payload");
  }
  if (request.block_count > kMaxStreamShares || request.first_block >= request.block_count) {
    return Foreign("block request", Cat("stream share ", request.first_block, " of ", request.block_count));
  }
  return OkStatus();
}

Status CheckBlockFrame(const FrameHeader& frame, uint32_t block_bytes, uint32_t layout_blocks) {
  if (frame.codec != static_cast<uint8_t>(payload::Codec::kRaw) &&
      frame.codec != static_cast<uint8_t>(payload::Codec::kSparse)) {
    return Foreign("frame", Cat("unknown codec ", static_cast<int>(frame.codec)));
  }
  if (frame.block >= layout_blocks)
    return Foreign("frame", Cat("block ", frame.block, " is outside the model's ", layout_blocks));
  if (frame.payload_bytes == 0 || frame.payload_bytes > block_bytes) {
    return Foreign(
        "frame", Cat("block ", frame.block, " has ", frame.payload_bytes, " coded bytes; the limit is ", block_bytes));
  }
  if (frame.version == 0 || frame.base_version >= frame.version) {
    return Foreign("frame",
                   Cat("block ", frame.block, " goes from version ", frame.base_version, " to ", frame.version));
  }
  return OkStatus();
}

}  // namespace

template void Seal(LaneHello&);
template void Seal(LaneWelcome&);
template void Seal(BlockRequest&);
template void Seal(FrameHeader&);

Status CheckHello(const LaneHello& hello) {
  LS_RETURN_IF_ERROR(CheckEnvelope("lane hello", hello, kHelloMagic));
  return CheckFormat("lane hello", hello.format);
}

Status CheckWelcome(const LaneWelcome& welcome) {
  LS_RETURN_IF_ERROR(CheckEnvelope("lane welcome", welcome, kWelcomeMagic));
  return CheckFormat("lane welcome", welcome.format);
}

Status CheckRequest(const BlockRequest& request, uint32_t layout_blocks) {
  LS_RETURN_IF_ERROR(CheckEnvelope("block request", request, kRequestMagic));
  const bool full = request.kind == static_cast<uint8_t>(RequestKind::kFull);
  const bool delta = request.kind == static_cast<uint8_t>(RequestKind::kDelta);
  if (request.kind == static_cast<uint8_t>(RequestKind::kStream)) return CheckStreamRequest(request);
  if (!full && !delta) return Foreign("block request", Cat("unknown kind ", static_cast<int>(request.kind)));
  if (full != (request.payload_id == 0)) return Foreign("block request", "its kind and its payload id disagree");
  if (request.block_count == 0 || request.first_block >= layout_blocks ||
      request.block_count > layout_blocks - request.first_block) {
    return Foreign("block request", Cat(request.block_count, " blocks from block ", request.first_block,
                                        " on are not within the model's ", layout_blocks));
  }
  return OkStatus();
}

Status CheckFrame(const FrameHeader& frame, uint32_t block_bytes, uint32_t layout_blocks) {
  LS_RETURN_IF_ERROR(CheckEnvelope("frame", frame, kFrameMagic));
  switch (static_cast<FrameType>(frame.type)) {
    case FrameType::kBlock:
      return CheckBlockFrame(frame, block_bytes, layout_blocks);
    case FrameType::kRequestEnd:
      if (frame.payload_bytes != 0) return Foreign("frame", "an end of request with a payload");
      return OkStatus();
    case FrameType::kError:
      if (frame.payload_bytes > kMaxErrorText) return Foreign("frame", "an error text that is too long");
      if (frame.block == 0 || frame.block > static_cast<uint32_t>(ErrorCode::kInternal)) {
        return Foreign("frame", Cat("unknown error code ", frame.block));
      }
      return OkStatus();
  }
  return Foreign("frame", Cat("unknown type ", static_cast<int>(frame.type)));
}

Status CheckFramePayload(const FrameHeader& frame, ByteView payload) {
  if (payload.size() == frame.payload_bytes && Hash64(payload) == frame.payload_hash) return OkStatus();
  return {ErrorCode::kCorrupt, Cat("frame: the payload of block ", frame.block, " fails its hash")};
}

}  // namespace lockstep::wire
