// What a peer of a gRPC port says, as the guard before gRPC reads it: however it is cut, the same frames are found, and
// the guard never has more calls than it may (common/rpc/http2_guard.h).
#include <algorithm>
#include <asio.hpp>
#include <optional>
#include <tuple>

#include "common/rpc/http2_guard.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

constexpr size_t kCalls = 4;
constexpr size_t kMostUnanswered = 256;
const rpc::Http2Guard::Limits kLimits{
    .calls = kCalls, .unanswered_bytes = kMostUnanswered, .whole_in = std::chrono::seconds(3600)};

using Header = std::tuple<uint32_t, uint8_t, uint8_t, uint32_t>;

std::vector<Header> HeadersOf(ByteView said, size_t piece) {
  std::vector<Header> headers;
  rpc::Http2FrameReader reader(0);
  while (!said.empty()) {
    ByteView now = said.first(std::min(piece, said.size()));
    said = said.subspan(now.size());
    while (const auto header = reader.Next(now)) {
      LS_FUZZ_RULE(header->payload_bytes < 1 << 24 && header->stream < 1U << 31);
      headers.emplace_back(header->payload_bytes, header->type, header->flags, header->stream);
    }
    LS_FUZZ_RULE(now.empty());
  }
  return headers;
}

// How many calls begin, or why the peer is cut off.
Result<size_t> Guard(ByteView said, size_t piece) {
  asio::io_context context;
  rpc::CallSlots slots(context, kCalls, [] {});
  rpc::Http2Guard guard(kLimits, &slots);
  const Bytes preface(24);
  LS_FUZZ_RULE(guard.FromPeer(preface).ok());
  size_t begun = 0;
  while (!said.empty()) {
    const ByteView now = said.first(std::min(piece, said.size()));
    LS_ASSIGN_OR_RETURN(const rpc::Http2Guard::Passed passed, guard.FromPeer(now));
    LS_FUZZ_RULE(passed.bytes > 0 && passed.bytes <= now.size() && (passed.begins || passed.bytes == now.size()));
    said = said.subspan(passed.bytes);
    if (!passed.begins) continue;
    if (begun == kCalls) return begun;  // a slot may be waited for from here on
    std::optional<Status> status;
    const auto begin = [&]() -> asio::awaitable<void> { status = co_await guard.Begin(); };
    asio::co_spawn(context, begin(), asio::detached);
    context.restart();
    context.poll();
    LS_FUZZ_RULE(status && status->ok());
    ++begun;
  }
  return begun;
}

Bytes Frame(uint8_t type, uint8_t flags, uint8_t stream, size_t payload) {
  Bytes frame(9 + payload);
  frame[2] = static_cast<std::byte>(payload);
  frame[3] = static_cast<std::byte>(type);
  frame[4] = static_cast<std::byte>(flags);
  frame[8] = static_cast<std::byte>(stream);
  return frame;
}

}  // namespace

std::vector<Bytes> Seeds() {
  Bytes call = Frame(1, 4, 1, 20);
  AppendBytes(call, Frame(0, 1, 1, 7));
  Bytes reset = Frame(1, 4, 1, 20);
  AppendBytes(reset, Frame(3, 0, 1, 4));
  return {Frame(4, 0, 0, 0), call, reset};
}

void TestInput(ByteView input) {
  const std::vector<Header> whole = HeadersOf(input, input.size() + 1);
  const Result<size_t> calls = Guard(input, input.size() + 1);
  for (const size_t piece : {size_t{1}, size_t{2}, size_t{9}, size_t{10}}) {
    LS_FUZZ_RULE(HeadersOf(input, piece) == whole);
    const Result<size_t> again = Guard(input, piece);
    LS_FUZZ_RULE(again.ok() == calls.ok() && (!calls.ok() || *again == *calls));
  }
  if (!calls.ok()) return CheckRefusal(calls.status(), {ErrorCode::kResourceExhausted});
  const auto resets = std::ranges::count_if(whole, [](const Header& header) { return std::get<1>(header) == 3; });
  Accepted(input, {*calls > 1, resets > 0, whole.size() > 3});
}

}  // namespace lockstep::fuzz
