// The header of a frame and the check of its payload (common/wire/frame.h). An input is a header, then a payload.
#include "common/wire/frame.h"

#include "kernels/hash.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

constexpr uint32_t kBlockBytes = 4096;
constexpr uint32_t kBlocks = 10;

Bytes Framed(wire::FrameHeader frame, std::string_view payload) {
  frame.payload_bytes = static_cast<uint32_t>(payload.size());
  frame.payload_hash = Hash64(payload.data(), payload.size());
  wire::Seal(frame);
  Bytes input = Copy(AsBytes(frame));
  AppendBytes(input, AsBytes(payload));
  return input;
}

void CheckBounds(const wire::FrameHeader& frame) {
  switch (static_cast<wire::FrameType>(frame.type)) {
    case wire::FrameType::kBlock:
      LS_FUZZ_RULE(frame.block < kBlocks);
      LS_FUZZ_RULE(frame.payload_bytes >= 1 && frame.payload_bytes <= kBlockBytes);
      LS_FUZZ_RULE(frame.base_version < frame.version);
      return;
    case wire::FrameType::kRequestEnd:
      LS_FUZZ_RULE(frame.payload_bytes == 0);
      return;
    case wire::FrameType::kError:
      LS_FUZZ_RULE(frame.payload_bytes <= wire::kMaxErrorText);
      LS_FUZZ_RULE(frame.block >= 1 && frame.block <= static_cast<uint32_t>(ErrorCode::kInternal));
      return;
  }
  LS_FUZZ_RULE(!"a type that the format does not have");
}

void TestFrame(const wire::FrameHeader& frame, ByteView payload, ByteView input) {
  const Status header = wire::CheckFrame(frame, kBlockBytes, kBlocks);
  if (!header.ok()) return CheckRefusal(header, {ErrorCode::kProtocol, ErrorCode::kCorrupt});
  CheckBounds(frame);
  const bool whole = frame.payload_bytes == payload.size() && frame.payload_hash == Hash64(payload);
  const Status content = wire::CheckFramePayload(frame, payload);
  LS_FUZZ_RULE(content.ok() == whole);
  if (!content.ok()) return CheckRefusal(content, {ErrorCode::kCorrupt});
  const bool block = frame.type == static_cast<uint8_t>(wire::FrameType::kBlock);
  Accepted(input, {block, frame.block == 7, frame.changes > 1000, frame.version > 1'000'000});
}

}  // namespace

std::vector<Bytes> Seeds() {
  const auto type = [](wire::FrameType type) { return static_cast<uint8_t>(type); };
  const auto codec = [](payload::Codec codec) { return static_cast<uint8_t>(codec); };
  Bytes documented = HexBlock("common/wire/FORMAT.md", "frame");
  AppendBytes(documented, AsBytes(std::string_view("\0\0\1\x14", 4)));
  return {
      documented,
      Framed({.type = type(wire::FrameType::kBlock), .codec = codec(payload::Codec::kRaw), .block = 3, .version = 2},
             "sixteen bytes..."),
      Framed({.type = type(wire::FrameType::kRequestEnd), .request_id = 1, .block = 4}, ""),
      Framed({.type = type(wire::FrameType::kError), .request_id = 2, .block = 6}, "no such version"),
  };
}

void TestInput(ByteView input) {
  ByteReader reader(input);
  wire::FrameHeader frame;
  if (!reader.Take(frame)) return;
  TestFrame(frame, reader.rest(), input);
  frame.payload_hash = Hash64(reader.rest());
  frame.payload_bytes = static_cast<uint32_t>(reader.rest().size());
  wire::Seal(frame);
  TestFrame(frame, reader.rest(), input);
}

}  // namespace lockstep::fuzz
