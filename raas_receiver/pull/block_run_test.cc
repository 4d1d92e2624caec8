#include "raas_receiver/pull/block_run.h"

#include <catch2/catch.hpp>
#include <functional>

#include "raas_receiver/replica/test_model.h"

namespace lockstep::pull {
namespace {

const model::ModelLayout& Layout() {
  static const replica::TestModel* const model = new replica::TestModel;
  return *model->layout();
}

BlockRun FullRun() {
  return {.kind = wire::RequestKind::kFull, .version = 5, .first = 2, .count = 4};
}
BlockRun DeltaRun() {
  return {.kind = wire::RequestKind::kDelta, .payload_id = 9, .base = 4, .version = 5, .first = 2, .count = 4};
}

wire::FrameHeader FrameFor(const BlockRun& run, BlockIndex block) {
  wire::FrameHeader frame;
  frame.type = static_cast<uint8_t>(wire::FrameType::kBlock);
  frame.block = block;
  frame.version = run.version;
  frame.base_version = run.base;
  frame.payload_id = run.payload_id;
  frame.codec =
      static_cast<uint8_t>(run.kind == wire::RequestKind::kFull ? payload::Codec::kRaw : payload::Codec::kSparse);
  frame.payload_bytes = run.kind == wire::RequestKind::kFull ? model::kMinBlockBytes : 17;
  return frame;
}

// What Admit says of the run's first frame after `change` was done to it.
ErrorCode Admitted(const BlockRun& run, const std::function<void(wire::FrameHeader&)>& change) {
  wire::FrameHeader frame = FrameFor(run, run.first);
  change(frame);
  return RunProgress(run, 1).Admit(frame, Layout()).code();
}

wire::FrameHeader End(uint32_t blocks) {
  wire::FrameHeader end;
  end.block = blocks;
  return end;
}

}  // namespace

TEST_CASE("A run's pieces cover it once, in order") {
  const BlockRun whole{.kind = wire::RequestKind::kFull, .version = 1, .first = 3, .count = 10};
  const std::vector<BlockRun> pieces = SplitRun(whole, 4);
  REQUIRE(pieces.size() == 3);
  CHECK(pieces[0].first == 3);
  CHECK(pieces[1].first == 7);
  CHECK(pieces[2].first == 11);
  CHECK(pieces[2].end() == whole.end());
}

TEST_CASE("Requests are about as large as they are meant to be, at least one block, and every lane gets one") {
  CHECK(BlocksPerRequest(1'000 << 18, 1'000, 8 << 20, 4) == 32);
  CHECK(BlocksPerRequest(1'000 << 18, 1'000, 1, 4) == 1);
  CHECK(BlocksPerRequest(1'000, 1'000, 8 << 20, 4) == 250);
  CHECK(BlocksPerRequest(0, 0, 8 << 20, 4) == 1);
}

TEST_CASE("Only the very blocks that a full run asks for are admitted") {
  CHECK(Admitted(FullRun(), [](wire::FrameHeader&) {}) == ErrorCode::kOk);
  CHECK(Admitted(FullRun(), [](wire::FrameHeader& frame) { frame.version = 6; }) == ErrorCode::kOk);
  const std::function<void(wire::FrameHeader&)> foul[] = {
      [](wire::FrameHeader& frame) { frame.block = 1; },
      [](wire::FrameHeader& frame) { frame.block = 6; },
      [](wire::FrameHeader& frame) { frame.block = 3; },
      [](wire::FrameHeader& frame) { frame.version = 4; },
      [](wire::FrameHeader& frame) { frame.base_version = 4; },
      [](wire::FrameHeader& frame) { frame.payload_id = 1; },
      [](wire::FrameHeader& frame) { frame.payload_bytes -= 1; },
      [](wire::FrameHeader& frame) { frame.block_hash ^= 1; },
      [](wire::FrameHeader& frame) { frame.codec = static_cast<uint8_t>(payload::Codec::kSparse); },
  };
  for (const auto& change : foul) CHECK(Admitted(FullRun(), change) == ErrorCode::kProtocol);
}

TEST_CASE("A run for one exact version admits no other") {
  BlockRun run = FullRun();
  run.exact = true;
  CHECK(Admitted(run, [](wire::FrameHeader&) {}) == ErrorCode::kOk);
  CHECK(Admitted(run, [](wire::FrameHeader& frame) { frame.version = 6; }) == ErrorCode::kProtocol);
  CHECK(RunProgress(run, 1).Request().exact_version == 5);
  CHECK(RunProgress(FullRun(), 1).Request().exact_version == 0);
}

TEST_CASE("Only entries of the payload and the step that a delta run asks for are admitted") {
  CHECK(Admitted(DeltaRun(), [](wire::FrameHeader&) {}) == ErrorCode::kOk);
  CHECK(Admitted(DeltaRun(), [](wire::FrameHeader& frame) { frame.block = 5; }) == ErrorCode::kOk);
  const std::function<void(wire::FrameHeader&)> foul[] = {
      [](wire::FrameHeader& frame) { frame.block = 6; },
      [](wire::FrameHeader& frame) { frame.base_version = 3; },
      [](wire::FrameHeader& frame) { frame.version = 6; },
      [](wire::FrameHeader& frame) { frame.payload_id = 8; },
      [](wire::FrameHeader& frame) { frame.codec = static_cast<uint8_t>(payload::Codec::kRaw); },
  };
  for (const auto& change : foul) CHECK(Admitted(DeltaRun(), change) == ErrorCode::kProtocol);
}

TEST_CASE("A stream's run admits blocks of its share that lead on from its base") {
  const BlockRun run{.kind = wire::RequestKind::kStream, .base = 4, .first = 1, .count = 3};
  const auto admitted = [&](BlockIndex block, Version base, Version version) {
    wire::FrameHeader frame = FrameFor(run, block);
    frame.base_version = base;
    frame.version = version;
    return RunProgress(run, 1).Admit(frame, Layout()).code();
  };
  CHECK(admitted(1, 4, 5) == ErrorCode::kOk);
  CHECK(admitted(4, 4, 6) == ErrorCode::kOk);
  CHECK(admitted(2, 4, 5) == ErrorCode::kProtocol);
  CHECK(admitted(1, 3, 5) == ErrorCode::kProtocol);
  CHECK(admitted(1, 4, 4) == ErrorCode::kProtocol);
}

TEST_CASE("The rest of a stream's run is its whole share, whichever block came") {
  const BlockRun run{.kind = wire::RequestKind::kStream, .base = 4, .first = 1, .count = 3};
  RunProgress progress(run, 1);
  progress.Received(FrameFor(run, 1));
  REQUIRE(progress.Rest().has_value());
  CHECK(progress.Rest()->first == run.first);
  CHECK(progress.Rest()->count == run.count);
}

TEST_CASE("A block that came is not admitted again, and the rest is what comes after it") {
  RunProgress progress(DeltaRun(), 1);
  const wire::FrameHeader frame = FrameFor(DeltaRun(), 3);
  REQUIRE(progress.Admit(frame, Layout()).ok());
  progress.Received(frame);
  CHECK(progress.Admit(frame, Layout()).code() == ErrorCode::kProtocol);
  CHECK(progress.Admit(FrameFor(DeltaRun(), 2), Layout()).code() == ErrorCode::kProtocol);
  REQUIRE(progress.Rest().has_value());
  CHECK(progress.Rest()->first == 4);
  CHECK(progress.Rest()->count == 2);
  progress.Received(FrameFor(DeltaRun(), 5));
  CHECK_FALSE(progress.Rest().has_value());
}

TEST_CASE("An end must count the blocks that came, and a full run's must have come all") {
  RunProgress delta(DeltaRun(), 1);
  delta.Received(FrameFor(DeltaRun(), 3));
  CHECK(delta.Finish(End(1)).ok());
  CHECK(delta.Finish(End(2)).code() == ErrorCode::kProtocol);
  RunProgress full(FullRun(), 1);
  full.Received(FrameFor(FullRun(), 2));
  CHECK(full.Finish(End(1)).code() == ErrorCode::kProtocol);
  for (BlockIndex block = 3; block < 6; ++block) full.Received(FrameFor(FullRun(), block));
  CHECK(full.Finish(End(4)).ok());
}

}  // namespace lockstep::pull
