// The other messages of lanes and of the local path (common/wire/frame.h, local.h): each begins with a magic of its
// own, so an input is given to all of their decoders.
#include "common/wire/frame.h"
#include "common/wire/local.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

constexpr uint32_t kBlocks = 10;

// They also check the bounds of what was taken.
Steps StepsOf(const wire::BlockRequest& request) {
  if (request.kind == static_cast<uint8_t>(wire::RequestKind::kStream)) {
    LS_FUZZ_RULE(request.first_block < request.block_count && request.block_count <= wire::kMaxStreamShares);
  } else {
    LS_FUZZ_RULE(request.block_count >= 1);
    LS_FUZZ_RULE(uint64_t{request.first_block} + request.block_count <= kBlocks);
  }
  return {request.block_count > 20, request.first_block > 10, request.request_id > 1'000'000};
}

Steps StepsOf(const wire::LocalAnswer& answer) {
  LS_FUZZ_RULE(answer.code <= static_cast<uint32_t>(ErrorCode::kInternal));
  LS_FUZZ_RULE(answer.tail_bytes <= (answer.code != 0 ? wire::kMaxErrorText : kBlocks * sizeof(uint64_t)));
  return {};
}

template <typename T>
Steps StepsOf(const T&) {
  return {};
}

template <typename T, typename Check>
void TestMessage(ByteView input, const Check& check) {
  T message;
  ByteReader reader(input);
  if (!reader.Take(message)) return;
  for (const bool sealed : {false, true}) {
    if (sealed) wire::Seal(message);
    const Status status = check(message);
    if (!status.ok()) {
      CheckRefusal(status, {ErrorCode::kProtocol, ErrorCode::kCorrupt});
      continue;
    }
    T again = message;
    wire::Seal(again);
    LS_FUZZ_RULE(again.check == message.check);
    Accepted(input, StepsOf(message));
  }
}

}  // namespace

std::vector<Bytes> Seeds() {
  std::vector<Bytes> seeds;
  for (const char* name : {"hello", "welcome", "request", "local-request", "local-answer"}) {
    seeds.push_back(HexBlock("common/wire/FORMAT.md", name));
  }
  wire::BlockRequest stream{
      .kind = static_cast<uint8_t>(wire::RequestKind::kStream), .first_block = 1, .block_count = 4, .exact_version = 9};
  wire::Seal(stream);
  seeds.push_back(Copy(AsBytes(stream)));
  return seeds;
}

void TestInput(ByteView input) {
  TestMessage<wire::LaneHello>(input, wire::CheckHello);
  TestMessage<wire::LaneWelcome>(input, wire::CheckWelcome);
  TestMessage<wire::BlockRequest>(
      input, [](const wire::BlockRequest& request) { return wire::CheckRequest(request, kBlocks); });
  TestMessage<wire::LocalRequest>(input, wire::CheckLocalRequest);
  TestMessage<wire::LocalAnswer>(
      input, [](const wire::LocalAnswer& answer) { return wire::CheckLocalAnswer(answer, kBlocks); });
}

}  // namespace lockstep::fuzz
