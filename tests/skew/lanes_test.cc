// Lanes of releases of before, as recorded (record.py): this release reads every byte of them.
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/base/hash.h"
#include "common/wire/frame.h"

namespace lockstep::wire {
namespace {

constexpr const char* kRecordings[] = {"tests/skew/0.1.0/lanes.json"};
constexpr uint32_t kBlocks = 1;
constexpr uint32_t kBlockBytes = 256 << 10;

Bytes FromHex(const std::string& hex) {
  Bytes bytes;
  for (size_t at = 0; at < hex.size(); at += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoul(hex.substr(at, 2), nullptr, 16)));
  }
  return bytes;
}

template <typename Message>
Message Take(ByteReader& reader) {
  Message message;
  REQUIRE(reader.Take(message));
  return message;
}

// How many blocks the lane carried.
size_t ReadAnswers(const Bytes& bytes) {
  ByteReader reader(bytes);
  REQUIRE(CheckWelcome(Take<LaneWelcome>(reader)).ToString() == OkStatus().ToString());
  size_t blocks = 0;
  while (!reader.empty()) {
    const auto frame = Take<FrameHeader>(reader);
    REQUIRE(CheckFrame(frame, kBlockBytes, kBlocks).ToString() == OkStatus().ToString());
    ByteView payload;
    REQUIRE(reader.TakeBytes(frame.payload_bytes, payload));
    if (frame.type != static_cast<uint8_t>(FrameType::kBlock)) continue;
    REQUIRE(CheckFramePayload(frame, payload).ToString() == OkStatus().ToString());
    ++blocks;
  }
  return blocks;
}

void ReadRequests(const Bytes& bytes) {
  ByteReader reader(bytes);
  REQUIRE(CheckHello(Take<LaneHello>(reader)).ToString() == OkStatus().ToString());
  while (!reader.empty()) {
    const auto request = Take<BlockRequest>(reader);
    CHECK(CheckRequest(request, kBlocks).ToString() == OkStatus().ToString());
  }
}

TEST_CASE("lanes of every recorded release are read: hellos, requests, frames") {
  for (const char* recording : kRecordings) {
    CAPTURE(recording);
    std::ifstream file(recording);
    size_t blocks = 0;
    for (const auto& lane : nlohmann::json::parse(file)) {
      ReadRequests(FromHex(lane.at("receiver")));
      blocks += ReadAnswers(FromHex(lane.at("agent")));
    }
    CHECK(blocks >= 2);  // a full one of version 1, a delta to version 2
  }
}

}  // namespace
}  // namespace lockstep::wire
