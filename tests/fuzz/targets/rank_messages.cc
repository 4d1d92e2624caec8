// What ranks of a trainer and their agent say to each other (common/wire/rank_messages.h). An input is a
// stream of messages.
#include "common/wire/rank_messages.h"

#include "common/base/text.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/small_model.h"
#include "tests/fuzz/stream.h"
#include "trainer_agent/run/shares.h"

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

wire::Share ShareOf(const std::vector<StridedRange>& batches) {
  wire::Share share;
  for (const StridedRange& batch : batches) share.Add({&batch, 1});
  return share;
}

Bytes OpenBody(std::string_view model, const std::vector<StridedRange>& batches) {
  const wire::OpenBody open{.rank = 1, .ranks = 2, .run = SmallRun()};
  return wire::EncodeOpen(open, model, *SmallLayout(), ShareOf(batches));
}

Bytes BatchesBody(const std::vector<uint32_t>& batches) {
  Bytes body = Copy(AsBytes(wire::VersionBody{2}));
  AppendBytes(body, std::as_bytes(std::span(batches)));
  return body;
}

// A share is proved to be the whole model, or refused. Where it is proved, its batches complete every block once.
void TestShare(const wire::Share& share, Taken& taken) {
  run::Shares shares(SmallLayout(), 1);
  const Status proved = shares.Set(0, share);
  if (!proved.ok()) return CheckRefusal(proved, {ErrorCode::kBadData, ErrorCode::kResourceExhausted});
  LS_FUZZ_RULE(shares.ranges_of_blocks().has_value());
  taken.covered += share.ranges.size();
  run::DraftProgress progress(&shares);
  size_t completed = 0;
  for (uint32_t batch = 0; batch < share.batch_ends.size(); ++batch) {
    const auto blocks = progress.Report(0, {&batch, 1}, run::Content::kNew);
    LS_FUZZ_RULE(blocks.ok());
    completed += blocks->changed.size();
    LS_FUZZ_RULE(!progress.Report(0, {&batch, 1}, run::Content::kNew).ok());
  }
  LS_FUZZ_RULE(progress.CheckWhole(0).ok());
  LS_FUZZ_RULE(completed == SmallLayout()->block_count());
}

void TestOpen(ByteView body, Taken& taken) {
  const auto open = wire::DecodeOpen(body);
  if (!open.ok()) return CheckRefusal(open.status(), {ErrorCode::kProtocol, ErrorCode::kBadData});
  LS_FUZZ_RULE(open->ranks <= wire::kMaxRanks && open->layout != nullptr);
  LS_FUZZ_RULE(open->share.batch_ends.empty() || open->share.batch_ends.back() == open->share.ranges.size());
  TestShare(open->share, taken);
  taken.ranks = open->ranks;
}

void TestBatches(ByteView body) {
  const auto batches = wire::DecodeBatches(body);
  if (!batches.ok()) return CheckRefusal(batches.status(), {ErrorCode::kProtocol});
  LS_FUZZ_RULE(batches->size() * sizeof(uint32_t) == body.size());
}

void TestMessage(const wire::RankMessage& message, Taken& taken) {
  ByteReader reader(message.body);
  wire::VersionBody version;
  switch (message.type) {
    case RankMessageType::kOpen:
      return TestOpen(message.body, taken);
    case RankMessageType::kBatches:
    case RankMessageType::kUnchanged:
      if (reader.Take(version)) TestBatches(reader.rest());
      return;
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
  Bytes session =
      Encoded(RankMessageType::kOpen, OpenBody("actor", {{0, 8}, {8, 2, 64, 128}, {10, 126, 64, 128}, {8200, 100}}));
  AppendBytes(session, HexBlock("trainer_agent/run/FORMAT.md", "begin"));
  AppendBytes(session, Encoded(RankMessageType::kBatches, BatchesBody({0, 2})));
  AppendBytes(session, Encoded(RankMessageType::kUnchanged, BatchesBody({1, 3})));
  AppendBytes(session, Encoded(RankMessageType::kAbort, AsBytes(wire::VersionBody{2})));
  Bytes brief = Encoded(RankMessageType::kOpen, OpenBody("a", {{0, 8}, {8, 8192}, {8200, 100}}));
  AppendBytes(brief, Encoded(RankMessageType::kBatches, BatchesBody({0})));
  AppendBytes(brief, Encoded(RankMessageType::kAbort, AsBytes(wire::VersionBody{2})));
  return {HexBlock("trainer_agent/run/FORMAT.md", "batches"),
          Encoded(RankMessageType::kBatches, BatchesBody({0, 1, 2})),
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
