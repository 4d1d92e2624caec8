#include "common/wire/frame.h"

#include <catch2/catch.hpp>

#include "common/base/hash.h"
#include "common/wire/local.h"

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

// Checks that the sealed message passes and that no single flipped bit of it does.
template <typename T, typename F>
void EveryFlipIsRefused(const T& good, F check) {
  CHECK(check(good).ok());
  for (size_t bit = 0; bit < sizeof(T) * 8; ++bit) {
    T bad = good;
    reinterpret_cast<uint8_t*>(&bad)[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    CHECK_FALSE(check(bad).ok());
  }
}

TEST_CASE("Sealed messages pass and every flipped bit is refused") {
  EveryFlipIsRefused(Sealed(LaneHello{.pull_id = 7}), CheckHello);
  EveryFlipIsRefused(Sealed(LaneWelcome{}), CheckWelcome);
  EveryFlipIsRefused(Sealed(GoodRequest()), [](const BlockRequest& request) { return CheckRequest(request, kBlocks); });
  EveryFlipIsRefused(Sealed(GoodFrame()),
                     [](const FrameHeader& frame) { return CheckFrame(frame, kBlockBytes, kBlocks); });
  EveryFlipIsRefused(Sealed(LocalRequest{.kind = static_cast<uint8_t>(LocalKind::kHalf), .version = 4}),
                     CheckLocalRequest);
  EveryFlipIsRefused(Sealed(LocalAnswer{.version = 4, .data_bytes = 99, .tail_bytes = 80}),
                     [](const LocalAnswer& answer) { return CheckLocalAnswer(answer, kBlocks); });
}

TEST_CASE("Well-sealed nonsense is refused too") {
  const auto frame_refused = [](auto change) {
    FrameHeader frame = GoodFrame();
    change(frame);
    return !CheckFrame(Sealed(frame), kBlockBytes, kBlocks).ok();
  };
  CHECK(frame_refused([](FrameHeader& f) { f.block = kBlocks; }));
  CHECK(frame_refused([](FrameHeader& f) { f.payload_bytes = kBlockBytes + 1; }));
  CHECK(frame_refused([](FrameHeader& f) { f.payload_bytes = 0; }));
  CHECK(frame_refused([](FrameHeader& f) { f.base_version = 2; }));
  CHECK(frame_refused([](FrameHeader& f) { f.codec = 9; }));
  CHECK(frame_refused([](FrameHeader& f) { f.type = 9; }));
  CHECK(frame_refused([](FrameHeader& f) { f.type = static_cast<uint8_t>(FrameType::kRequestEnd); }));
  CHECK(frame_refused([](FrameHeader& f) {
    f.type = static_cast<uint8_t>(FrameType::kError);
    f.block = 200;
  }));
  const auto request_refused = [](auto change) {
    BlockRequest request = GoodRequest();
    change(request);
    return !CheckRequest(Sealed(request), kBlocks).ok();
  };
  CHECK(request_refused([](BlockRequest& r) { r.block_count = 9; }));
  CHECK(request_refused([](BlockRequest& r) { r.block_count = 0; }));
  CHECK(request_refused([](BlockRequest& r) { r.first_block = ~0u; }));
  CHECK(request_refused([](BlockRequest& r) { r.kind = 7; }));
  CHECK(request_refused([](BlockRequest& r) { r.payload_id = 5; }));
  const auto ask_refused = [](LocalRequest request) { return !CheckLocalRequest(Sealed(request)).ok(); };
  CHECK(ask_refused({.kind = 9}));
  CHECK(ask_refused({.kind = static_cast<uint8_t>(LocalKind::kHalf), .payload_id = 5}));
  CHECK(ask_refused({.kind = static_cast<uint8_t>(LocalKind::kPayload)}));
  CHECK(ask_refused({.kind = static_cast<uint8_t>(LocalKind::kAlive), .version = 1}));
  const auto answer_refused = [](LocalAnswer answer) { return !CheckLocalAnswer(Sealed(answer), kBlocks).ok(); };
  CHECK(answer_refused({.code = 200}));
  CHECK(answer_refused({.tail_bytes = kBlocks * 8 + 1}));
  CHECK(answer_refused({.code = 1, .tail_bytes = kMaxErrorText + 1}));
  CHECK_FALSE(answer_refused({.code = 1, .tail_bytes = kMaxErrorText}));
  LaneHello newer;
  newer.format = kWireFormat + 1;
  CHECK(CheckHello(Sealed(newer)).message().find("matching releases") != std::string::npos);
}

TEST_CASE("A payload that fails its hash is refused") {
  const Bytes payload(100, std::byte{1});
  FrameHeader frame = GoodFrame();
  frame.payload_bytes = 100;
  frame.payload_hash = Hash64(payload);
  CHECK(CheckFramePayload(frame, payload).ok());
  CHECK(CheckFramePayload(frame, ByteView(payload).first(99)).code() == ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace lockstep::wire
