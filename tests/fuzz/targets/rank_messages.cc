// What ranks of a trainer and their agent say to each other (common/wire/rank_messages.h). An input is a
// stream of messages.
#include "common/wire/rank_messages.h"

#include "common/base/text.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/small_model.h"
#include "tests/fuzz/stream.h"
#include "trainer_agent/run/coverage.h"

namespace lockstep::fuzz {
namespace {

using wire::RankMessageType;

constexpr std::chrono::milliseconds kTimeout{1000};

// What a stream had that was taken.
struct Taken {
  uint32_t ranks = 0;
  size_t covered = 0;  // ranges
  bool aborted = false;
};

Bytes Encoded(RankMessageType type, ByteView body) {
  Bytes message = Copy(AsBytes(
      wire::RankMessageHeader{.type = static_cast<uint16_t>(type), .body_bytes = static_cast<uint32_t>(body.size())}));
  AppendBytes(message, body);
  return message;
}

Bytes OpenBody(std::string_view model) {
  const Bytes& layout = SmallLayout()->encoded();
  Bytes body = Copy(AsBytes(wire::OpenBody{.rank = 1,
                                           .ranks = 2,
                                           .run = SmallRun(),
                                           .model_bytes = static_cast<uint32_t>(model.size()),
                                           .layout_bytes = static_cast<uint32_t>(layout.size())}));
  AppendBytes(body, AsBytes(model));
  AppendBytes(body, layout);
  return body;
}

Bytes RangesBody(const std::vector<StridedRange>& ranges) {
  Bytes body = Copy(AsBytes(wire::VersionBody{2}));
  AppendBytes(body, std::as_bytes(std::span(ranges)));
  return body;
}

void TestOpen(ByteView body, Taken& taken) {
  const auto open = wire::DecodeOpen(body);
  if (!open.ok()) return CheckRefusal(open.status(), {ErrorCode::kProtocol, ErrorCode::kBadData});
  LS_FUZZ_RULE(open->ranks <= wire::kMaxRanks && open->layout != nullptr);
  taken.ranks = open->ranks;
}

// Every range is covered as a whole, or refused.
void TestRanges(ByteView body, Taken& taken) {
  const auto ranges = wire::DecodeRanges(body);
  if (!ranges.ok()) return CheckRefusal(ranges.status(), {ErrorCode::kProtocol});
  LS_FUZZ_RULE(ranges->size() * sizeof(StridedRange) == body.size());
  run::Coverage coverage(*SmallLayout());
  size_t completed_blocks = 0;
  for (const StridedRange& range : *ranges) {
    const uint64_t missing = coverage.missing_bytes();
    run::CompletedBlocks completed;
    const Status added = coverage.Add(range, run::Content::kNew, completed);
    completed_blocks += completed.changed.size();
    if (added.ok()) {
      LS_FUZZ_RULE(coverage.missing_bytes() == missing - (range.row_bytes == 0 ? 0 : range.bytes()));
      ++taken.covered;
    } else {
      LS_FUZZ_RULE(added.code() == ErrorCode::kResourceExhausted || coverage.missing_bytes() == missing);
      CheckRefusal(added, {ErrorCode::kBadData, ErrorCode::kResourceExhausted});
    }
  }
  LS_FUZZ_RULE(coverage.complete() == (completed_blocks == SmallLayout()->block_count()));
  LS_FUZZ_RULE(coverage.complete() == !coverage.FirstMissing().has_value());
}

void TestMessage(const wire::RankMessage& message, Taken& taken) {
  ByteReader reader(message.body);
  wire::VersionBody version;
  switch (message.type) {
    case RankMessageType::kOpen:
      return TestOpen(message.body, taken);
    case RankMessageType::kRanges:
    case RankMessageType::kUnchanged:
      if (reader.Take(version)) TestRanges(reader.rest(), taken);
      return;
    case RankMessageType::kAwaitServed: {
      const auto question = wire::DecodeAwaitServed(message.body);
      if (!question.ok()) return CheckRefusal(question.status(), {ErrorCode::kProtocol});
      LS_FUZZ_RULE(question->names.empty() == (question->receivers > 0));
      LS_FUZZ_RULE(question->label.empty() == (question->version != 0));
      return;
    }
    case RankMessageType::kError: {
      const Status status = wire::DecodeError(message.body);
      LS_FUZZ_RULE(!status.ok() && status.code() <= ErrorCode::kInternal);
      LS_FUZZ_RULE(CleanText(status.message()) == status.message());
      return;
    }
    case RankMessageType::kAbort:
      taken.aborted = reader.Take(version) && version.version > 1000;
      return;
    default:
      return;
  }
}

}  // namespace

std::vector<Bytes> Seeds() {
  Bytes session = Encoded(RankMessageType::kOpen, OpenBody("actor"));
  AppendBytes(session, HexBlock("trainer_agent/run/FORMAT.md", "begin"));
  AppendBytes(session, Encoded(RankMessageType::kRanges, RangesBody({{0, 8}, {8, 2, 64, 128}, {10, 126, 1, 0}})));
  AppendBytes(session, Encoded(RankMessageType::kUnchanged, RangesBody({{8200, 100}, {8, 64, 64, 128}})));
  AppendBytes(session, Encoded(RankMessageType::kAbort, AsBytes(wire::VersionBody{2})));
  Bytes brief = Encoded(RankMessageType::kOpen, OpenBody("a"));
  AppendBytes(brief, Encoded(RankMessageType::kRanges, RangesBody({{0, 8}})));
  AppendBytes(brief, Encoded(RankMessageType::kAbort, AsBytes(wire::VersionBody{2})));
  return {HexBlock("trainer_agent/run/FORMAT.md", "ranges"),
          HexBlock("trainer_agent/run/FORMAT.md", "await-served"),
          Encoded(RankMessageType::kRanges, RangesBody({{0, 8}, {8, 8192}, {8200, 100}})),
          Encoded(RankMessageType::kError, wire::EncodeError({ErrorCode::kState, "version 2 is being written"})),
          Encoded(RankMessageType::kOpened, Bytes(sizeof(wire::OpenedBody))),
          session,
          brief};
}

void TestInput(ByteView input) {
  if (input.size() > kMostStreamBytes || NamesManyBlocks(input)) return;
  os::UnixConnection connection = StreamOf(input, {});
  Taken taken;
  ByteReader stream(input);
  while (true) {
    const auto message = wire::ReceiveRankMessage(connection, kTimeout);
    if (!message.ok()) {
      CheckRefusal(message.status(), {ErrorCode::kProtocol, ErrorCode::kUnavailable});
      break;
    }
    ByteView sent;
    LS_FUZZ_RULE(stream.TakeBytes(sizeof(wire::RankMessageHeader) + message->body.size(), sent));
    LS_FUZZ_RULE(Copy(sent) == Encoded(message->type, message->body));
    TestMessage(*message, taken);
  }
  if (stream.empty()) Accepted(input, {taken.ranks > 50, taken.aborted, taken.covered >= 1});
}

}  // namespace lockstep::fuzz
