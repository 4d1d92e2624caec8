// What every source of blocks must do, over each of them and a real agent.
#include "raas_receiver/pull/block_source.h"

#include <thread>

#include "raas_receiver/pull/source_fixture.h"

namespace lockstep::pull {
namespace {

enum class Kind { kLanes, kEncryptedLanes, kMemory };

// A source of one kind, for a receiver that holds version `held`.
struct Fixture {
  SourceHost host;
  Kind kind = GENERATE(Kind::kLanes, Kind::kEncryptedLanes, Kind::kMemory);
  serve::PullPlan plan;
  std::unique_ptr<BlockSource> source;

  void Open(Version held = 0) {
    plan = host.Open(held);
    if (kind == Kind::kLanes) source = host.OpenLanes(plan);
    if (kind == Kind::kEncryptedLanes) source = host.OpenLanes(plan, true);
    if (kind == Kind::kMemory) source = host.Connect(plan);
    UNSCOPED_INFO(source->name());
  }
  DeltaRequest Deltas() const { return {.run = host.run->run(), .steps = SourceHost::StepsOf(plan)}; }
};

TEST_CASE("A source brings every block asked for, into its place, and counts its bytes") {
  Fixture fixture;
  fixture.Open();
  KeptBlocks kept;
  REQUIRE(fixture.source->FetchBlocks({AllBlocks(), 1, false}, kept).ok());
  for (BlockIndex block = 0; block < serve::kBlocks; ++block) {
    CHECK(kept.block(block) == serve::BlockOf(1, block));
    CHECK(kept.versions[block] == 1);
  }
  CHECK(fixture.source->counters().payload_bytes == serve::kBlocks * serve::kBlock);
  CHECK(fixture.source->counters().live_bytes == 0);
  CHECK(fixture.source->counters().retries == 0);
}

TEST_CASE("A source brings no other blocks than those asked for, wherever they lie") {
  Fixture fixture;
  fixture.Open();
  const std::vector<BlockIndex> some{0, 3, 4, 5, 17, serve::kBlocks - 1};
  KeptBlocks kept;
  REQUIRE(fixture.source->FetchBlocks({some, 1, true}, kept).ok());
  CHECK(kept.missing().size() == serve::kBlocks - some.size());
  for (const BlockIndex block : some) CHECK(kept.block(block) == serve::BlockOf(1, block));
  CHECK(fixture.source->counters().payload_bytes == some.size() * serve::kBlock);
}

TEST_CASE("A version that is gone is brought as a newer one, unless it is the exact one that is wanted") {
  Fixture fixture;
  fixture.Open();
  fixture.host.Publish(2);
  fixture.host.blocks->oldest = 2;
  KeptBlocks exact;
  const Status gone = fixture.source->FetchBlocks({AllBlocks(), 1, true}, exact);
  INFO(gone.ToString());
  CHECK(gone.code() == ErrorCode::kState);
  CHECK(exact.missing().size() == serve::kBlocks);
  KeptBlocks kept;
  REQUIRE(fixture.source->FetchBlocks({AllBlocks(), 1, false}, kept).ok());
  for (BlockIndex block = 0; block < serve::kBlocks; ++block) CHECK(kept.block(block) == serve::BlockOf(2, block));
  CHECK(kept.versions == std::vector<Version>(serve::kBlocks, 2));
}

TEST_CASE("A source brings the entries of every delta asked for, and counts their bytes") {
  Fixture fixture;
  fixture.host.Publish(2);
  fixture.Open(1);
  KeptDeltas kept;
  const Status fetched = fixture.source->FetchDeltas(fixture.Deltas(), kept);
  INFO(fetched.ToString());
  REQUIRE(fetched.ok());
  uint64_t bytes = 0;
  REQUIRE(kept.entries.size() == fixture.plan.steps.size());
  for (const serve::PlannedStep& step : fixture.plan.steps) {
    CHECK(kept.entries[step.payload_id] == KeptDeltas::EntriesOf(*step.payload));
    bytes += step.payload->header().data_bytes;
  }
  CHECK(fixture.source->counters().payload_bytes == bytes);
}

TEST_CASE("What the agent does not have is an error that leaves the source in use") {
  Fixture fixture;
  fixture.host.Publish(2);
  fixture.Open(1);
  DeltaRequest unknown = fixture.Deltas();
  unknown.steps[0].payload_id += 100;
  KeptDeltas kept;
  const Status status = fixture.source->FetchDeltas(unknown, kept);
  INFO(status.ToString());
  CHECK(status.code() == ErrorCode::kNotFound);
  CHECK(kept.entries.empty());
  REQUIRE(fixture.source->FetchDeltas(fixture.Deltas(), kept).ok());
}

TEST_CASE("A source that is asked for nothing brings nothing, and that is no error") {
  Fixture fixture;
  fixture.Open();
  KeptBlocks blocks;
  KeptDeltas deltas;
  CHECK(fixture.source->FetchBlocks({{}, 1, false}, blocks).ok());
  CHECK(fixture.source->FetchDeltas({fixture.host.run->run(), {}}, deltas).ok());
  CHECK(fixture.source->counters().payload_bytes == 0);
}

TEST_CASE("A cancelled source ends the fetch in progress and refuses later ones") {
  Fixture fixture;
  fixture.Open();
  KeptBlocks kept;
  std::once_flag cancelled;
  // In the middle of the fetch, from a thread of its own: the one that copies would wait for itself.
  kept.before_copy = [&](BlockIndex) {
    std::call_once(cancelled, [&] { std::thread([&] { fixture.source->Cancel(); }).join(); });
  };
  CHECK(fixture.source->FetchBlocks({AllBlocks(), 1, false}, kept).code() == ErrorCode::kCancelled);
  CHECK(fixture.source->FetchBlocks({AllBlocks(), 1, false}, kept).code() == ErrorCode::kCancelled);
  KeptDeltas deltas;
  const DeltaRequest request{.run = fixture.host.run->run(),
                             .steps = {{.payload_id = 1, .base = 1, .target = 2, .entries = 1}}};
  CHECK(fixture.source->FetchDeltas(request, deltas).code() == ErrorCode::kCancelled);
}

}  // namespace
}  // namespace lockstep::pull
