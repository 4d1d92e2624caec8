#include "common/wire/frame.h"

#include <catch2/catch.hpp>

#include "common/base/status_testing.h"
#include "common/wire/local.h"
#include "kernels/hash.h"

namespace lockstep::wire {
namespace {

constexpr uint32_t kBlockBytes = 4096;
constexpr uint32_t kBlocks = 10;

template <typename T>
T Sealed(T message) {
  Seal(message);
  return message;
}

FrameHeader GoodFrame() {
  return {.type = static_cast<uint8_t>(FrameType::kBlock),
          .codec = static_cast<uint8_t>(payload::Codec::kRaw),
          .block = 3,
          .version = 2,
          .payload_bytes = kBlockBytes};
}
BlockRequest GoodRequest() {
  return {.kind = static_cast<uint8_t>(RequestKind::kFull), .first_block = 2, .block_count = 8};
}

// Checks that the sealed message passes and that no single flipped bit of it does, with an error that says `what` it
// is.
template <typename T, typename F>
void EveryFlipIsRefused(const std::string& what, const T& good, F check) {
  CHECK(check(good).ok());
  for (size_t bit = 0; bit < sizeof(T) * 8; ++bit) {
    T bad = good;
    reinterpret_cast<uint8_t*>(&bad)[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    const bool foreign = bad.magic != good.magic || bad.bytes != good.bytes;
    CHECK_THAT(check(bad), FailsWith(foreign ? ErrorCode::kProtocol : ErrorCode::kCorrupt, what));
  }
}

TEST_CASE("Sealed messages pass and every flipped bit is refused") {
  EveryFlipIsRefused("lane hello: ", Sealed(LaneHello{.pull_id = 7}), CheckHello);
  EveryFlipIsRefused("lane welcome: ", Sealed(LaneWelcome{}), CheckWelcome);
  EveryFlipIsRefused("block request: ", Sealed(GoodRequest()),
                     [](const BlockRequest& request) { return CheckRequest(request, kBlocks); });
  EveryFlipIsRefused("frame: ", Sealed(GoodFrame()),
                     [](const FrameHeader& frame) { return CheckFrame(frame, kBlockBytes, kBlocks); });
  EveryFlipIsRefused(
      "local request: ", Sealed(LocalRequest{.kind = static_cast<uint8_t>(LocalKind::kSlot), .version = 4}),
      CheckLocalRequest);
  EveryFlipIsRefused("local answer: ", Sealed(LocalAnswer{.version = 4, .data_bytes = 99, .tail_bytes = 80}),
                     [](const LocalAnswer& answer) { return CheckLocalAnswer(answer, kBlocks); });
}

TEST_CASE("Well-sealed nonsense is refused too") {
  const auto check_frame = [](auto change) {
    FrameHeader frame = GoodFrame();
    change(frame);
    return CheckFrame(Sealed(frame), kBlockBytes, kBlocks);
  };
  const auto foreign = [](auto... text) { return FailsWith(ErrorCode::kProtocol, text...); };
  CHECK_THAT(check_frame([](FrameHeader& f) { f.block = kBlocks; }),
             foreign("frame: block 10 is outside the model's 10"));
  CHECK_THAT(check_frame([](FrameHeader& f) { f.payload_bytes = kBlockBytes + 1; }),
             foreign("frame: block 3 has", "the limit is"));
  CHECK_THAT(check_frame([](FrameHeader& f) { f.payload_bytes = 0; }), foreign("frame: block 3 has 0 coded bytes"));
  CHECK_THAT(check_frame([](FrameHeader& f) { f.base_version = 2; }),
             foreign("frame: block 3 goes from version 2 to 2"));
  CHECK_THAT(check_frame([](FrameHeader& f) { f.codec = 9; }), foreign("frame: unknown codec 9"));
  CHECK_THAT(check_frame([](FrameHeader& f) { f.type = 9; }), foreign("frame: unknown type 9"));
  CHECK_THAT(check_frame([](FrameHeader& f) { f.type = static_cast<uint8_t>(FrameType::kRequestEnd); }),
             foreign("frame: an end of request with a payload"));
  const auto error = [](FrameHeader& f) {
    f.type = static_cast<uint8_t>(FrameType::kError);
    f.payload_bytes = 1;
    f.block = 200;
  };
  CHECK_THAT(check_frame(error), foreign("frame: unknown error code 200"));
  const auto check_request = [](auto change) {
    BlockRequest request = GoodRequest();
    change(request);
    return CheckRequest(Sealed(request), kBlocks);
  };
  CHECK_THAT(check_request([](BlockRequest& r) { r.block_count = 9; }),
             foreign("block request: 9 blocks from block 2 on are not within the model's 10"));
  CHECK_THAT(check_request([](BlockRequest& r) { r.block_count = 0; }), foreign("block request: 0 blocks"));
  CHECK_THAT(check_request([](BlockRequest& r) { r.first_block = ~0u; }), foreign("from block 4294967295 on"));
  CHECK_THAT(check_request([](BlockRequest& r) { r.kind = 7; }), foreign("block request: unknown kind 7"));
  CHECK_THAT(check_request([](BlockRequest& r) { r.payload_id = 5; }),
             foreign("block request: its kind and its payload id disagree"));
  const auto check_ask = [](LocalRequest request) { return CheckLocalRequest(Sealed(request)); };
  const auto disagrees = foreign("local request: its kind disagrees with its version or payload id");
  CHECK_THAT(check_ask({.kind = 9}), foreign("local request: unknown kind 9"));
  CHECK_THAT(check_ask({.kind = static_cast<uint8_t>(LocalKind::kSlot), .payload_id = 5}), disagrees);
  CHECK_THAT(check_ask({.kind = static_cast<uint8_t>(LocalKind::kPayload)}), disagrees);
  CHECK_THAT(check_ask({.kind = static_cast<uint8_t>(LocalKind::kAlive), .version = 1}), disagrees);
  const auto check_answer = [](LocalAnswer answer) { return CheckLocalAnswer(Sealed(answer), kBlocks); };
  CHECK_THAT(check_answer({.code = 200}), foreign("local answer: unknown error code 200"));
  CHECK_THAT(check_answer({.tail_bytes = kBlocks * 8 + 1}),
             foreign("local answer: a tail of 81 bytes; the limit is 80"));
  CHECK_THAT(check_answer({.code = 1, .tail_bytes = kMaxErrorText + 1}),
             foreign("local answer: a tail of", "the limit is"));
  CHECK(check_answer({.code = 1, .tail_bytes = kMaxErrorText}).ok());
  LaneHello newer;
  newer.format = kWireFormat + 1;
  CHECK_THAT(CheckHello(Sealed(newer)), FailsWith(ErrorCode::kProtocol, "matching releases"));
}

TEST_CASE("A payload that fails its hash is refused") {
  const Bytes payload(100, std::byte{1});
  FrameHeader frame = GoodFrame();
  frame.payload_bytes = 100;
  frame.payload_hash = Hash64(payload);
  CHECK(CheckFramePayload(frame, payload).ok());
  CHECK_THAT(CheckFramePayload(frame, ByteView(payload).first(99)),
             FailsWith(ErrorCode::kCorrupt, "the payload of block 3 fails its hash"));
}

}  // namespace
}  // namespace lockstep::wire
