#include "common/rpc/http2_guard.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "common/base/status_testing.h"
#include "common/base/text.h"

namespace lockstep::rpc {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, size_t payload) {
  std::string frame;
  for (const int shift : {16, 8, 0}) frame += static_cast<char>(payload >> shift);
  frame += static_cast<char>(type);
  frame += static_cast<char>(flags);
  for (const int shift : {24, 16, 8, 0}) frame += static_cast<char>(stream >> shift);
  return frame + std::string(payload, '\xff');
}
std::string Headers(uint32_t stream, uint8_t flags = 0) {
  return Frame(Http2FrameHeader::kHeaders, flags, stream, 20);
}
std::string Reset(uint32_t stream) {
  return Frame(Http2FrameHeader::kResetStream, 0, stream, 4);
}
std::string WholeRequest(uint32_t stream) {
  return Headers(stream) + Frame(Http2FrameHeader::kData, Http2FrameHeader::kEndStream, stream, 7);
}

// A guard, and its port's thread, which runs while something is waited for.
struct Port {
  explicit Port(size_t calls = 100) : slots(context, calls, [this] { ++waited; }) {}

  // Passes what a peer says, in pieces of so many bytes: how many got through.
  Result<size_t> Say(Http2Guard& guard, const std::string& said, size_t piece = 1 << 20) {
    size_t through = 0;
    for (ByteView rest = AsBytes(std::string_view(said)); !rest.empty();) {
      const ByteView now = rest.first(std::min(piece, rest.size()));
      LS_ASSIGN_OR_RETURN(const Http2Guard::Passed passed, guard.FromPeer(now));
      if (passed.begins) LS_RETURN_IF_ERROR(Begin(guard));
      through += passed.bytes;
      rest = rest.subspan(passed.bytes);
    }
    return through;
  }
  Status Begin(Http2Guard& guard) {
    std::optional<Status> begun;
    const auto begin = [&]() -> asio::awaitable<void> { begun = co_await guard.Begin(); };
    asio::co_spawn(context, begin(), asio::detached);
    while (!begun) {
      context.restart();
      context.run_one();
    }
    return *begun;
  }

  asio::io_context context;
  int waited = 0;
  CallSlots slots;
};

const Http2Guard::Limits kLimits{.calls = 8, .unanswered_bytes = 4096, .whole_in = std::chrono::seconds(1)};

TEST_CASE("Frames are found however their bytes are cut, and all pass while calls are few") {
  Port port;
  std::string said(kPreface);
  for (uint32_t stream = 1; stream <= 15; stream += 2)
    said += Frame(4, 0, 0, 6) + WholeRequest(stream) + Frame(6, 0, 0, 8);
  for (const size_t piece : {1, 2, 3, 7, 9, 10, 23, 1000}) {
    Http2Guard guard(kLimits, &port.slots);
    const Result<size_t> through = port.Say(guard, said, piece);
    REQUIRE(through.ok());
    CHECK(*through == said.size());
    CHECK(guard.deadline() == Clock::time_point::max());
  }
}

TEST_CASE("A peer has so many calls at a time; those that are answered, or that it resets, make room") {
  Port port;
  Http2Guard guard(kLimits, &port.slots);
  REQUIRE(port.Say(guard, std::string(kPreface)).ok());
  for (uint32_t stream = 1; stream <= 15; stream += 2) REQUIRE(port.Say(guard, WholeRequest(stream)).ok());
  SECTION("one too many") {
    CHECK_THAT(port.Say(guard, Headers(17)).status(), FailsWith(ErrorCode::kResourceExhausted, "more than 8 calls"));
  }
  SECTION("one was answered") {
    guard.FromServer(AsBytes(std::string_view(Headers(3) + Headers(3, Http2FrameHeader::kEndStream))));
    CHECK(port.Say(guard, Headers(17)).ok());
  }
  SECTION("one was refused") {
    guard.FromServer(AsBytes(std::string_view(Reset(3))));
    CHECK(port.Say(guard, Headers(17)).ok());
  }
  SECTION("one was reset") {
    CHECK(port.Say(guard, Reset(3) + Headers(17)).ok());
  }
}

TEST_CASE("Calls that their peer resets, or leaves, keep their slots for a while, and others wait for one in turn") {
  constexpr size_t kSlots = 4;
  Port port(kSlots);
  const auto began = Clock::now();
  {
    Http2Guard guard(kLimits, &port.slots);
    REQUIRE(port.Say(guard, std::string(kPreface)).ok());
    for (uint32_t stream = 1; stream <= 7; stream += 2) REQUIRE(port.Say(guard, WholeRequest(stream)).ok());
    REQUIRE(port.Say(guard, Reset(1) + Reset(3)).ok());
    CHECK(port.waited == 0);
  }
  Http2Guard other({.calls = 8, .unanswered_bytes = 4096, .whole_in = std::chrono::seconds(60)}, &port.slots);
  REQUIRE(port.Say(other, std::string(kPreface)).ok());
  for (uint32_t stream = 1; stream <= 7; stream += 2) REQUIRE(port.Say(other, WholeRequest(stream)).ok());
  CHECK(port.waited > 0);
  CHECK(Clock::now() - began >= std::chrono::seconds(4));
  other.FromServer(AsBytes(std::string_view(Headers(1) + Headers(3))));  // answered: free at once
  const int waited = port.waited;
  REQUIRE(port.Say(other, WholeRequest(9) + WholeRequest(11)).ok());
  CHECK(port.waited == waited);
}

TEST_CASE("Calls that end without an answer of a handler keep their slots for a while, whoever ends them") {
  Port port(2);
  Http2Guard guard(kLimits, &port.slots);
  REQUIRE(port.Say(guard, std::string(kPreface) + WholeRequest(1) + WholeRequest(3)).ok());
  SECTION("gRPC resets what it cannot read") {
    guard.FromServer(AsBytes(std::string_view(Reset(1) + Reset(3))));
  }
  SECTION("gRPC refuses them") {
    const uint8_t end = Http2FrameHeader::kEndStream;
    guard.FromServer(AsBytes(std::string_view(Headers(1, end) + Headers(3, end))));
  }
  const auto began = Clock::now();
  REQUIRE(port.Say(guard, WholeRequest(5)).status().code() == ErrorCode::kResourceExhausted);  // in a second
  CHECK(port.waited == 1);
  CHECK(Clock::now() - began >= kLimits.whole_in);
}

TEST_CASE("A peer that waits for a slot and leaves waits no more") {
  Port port(1);
  Http2Guard guard(kLimits, &port.slots);
  REQUIRE(port.Say(guard, std::string(kPreface) + WholeRequest(1)).ok());
  const auto began = Clock::now();
  asio::steady_timer soon(port.context, std::chrono::milliseconds(50));
  soon.async_wait([&](const asio::error_code&) { guard.Leave(); });
  CHECK(!port.Say(guard, Headers(3)).ok());
  CHECK(Clock::now() - began < kLimits.whole_in);
}

TEST_CASE("The number of a stream that only servers have is refused: gRPC would make calls of those below it") {
  Port port;
  Http2Guard guard(kLimits, &port.slots);
  CHECK_THAT(port.Say(guard, std::string(kPreface) + Headers(0x7ffffffe)).status(),
             FailsWith(ErrorCode::kResourceExhausted, "2147483646"));
}

TEST_CASE("A request that is not whole in time ends its connection, and so does the wait for a slot") {
  Port port(1);
  Http2Guard guard(kLimits, &port.slots);
  REQUIRE(port.Say(guard, std::string(kPreface) + Headers(1)).ok());
  CHECK(guard.deadline() < Clock::now() + kLimits.whole_in);
  CHECK_THAT(port.Say(guard, Headers(3)).status(), FailsWith(ErrorCode::kResourceExhausted, "too many calls"));
  CHECK(Clock::now() >= guard.deadline());
  CHECK_THAT(guard.FromPeer({}).status(), FailsWith(ErrorCode::kResourceExhausted, "did not end a request"));
}

TEST_CASE("A peer says so many bytes of requests before it is answered, and gRPC's own frames are no answer") {
  Port port;
  Http2Guard guard(kLimits, &port.slots);
  REQUIRE(port.Say(guard, std::string(kPreface) + Headers(1)).ok());
  const std::string settings = Frame(4, 1, 0, 0) + Frame(8, 0, 0, 4) + Frame(6, 1, 0, 8);
  REQUIRE(port.Say(guard, Frame(Http2FrameHeader::kData, 0, 1, 2000)).ok());
  guard.FromServer(AsBytes(std::string_view(settings)));
  SECTION("no answer") {
    CHECK_THAT(port.Say(guard, Frame(Http2FrameHeader::kData, 0, 1, 2100)).status(),
               FailsWith(ErrorCode::kResourceExhausted, "more than 4096 bytes"));
  }
  SECTION("an answer") {
    guard.FromServer(AsBytes(std::string_view(Headers(1))));
    CHECK(port.Say(guard, Frame(Http2FrameHeader::kData, 0, 1, 2100)).ok());
  }
  SECTION("a frame that says that it is large") {
    const std::string large = Frame(Http2FrameHeader::kHeaders, 0, 3, 16'000'000).substr(0, Http2FrameHeader::kBytes);
    CHECK_THAT(port.Say(guard, large).status(), FailsWith(ErrorCode::kResourceExhausted, "more than 4096 bytes"));
  }
  SECTION("frames of no request") {
    std::string pings;
    for (int i = 0; i < 1000; ++i) pings += Frame(6, 0, 0, 8);
    CHECK(port.Say(guard, pings).ok());
  }
}

}  // namespace
}  // namespace lockstep::rpc
