#include "raas_receiver/origin/fetcher.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "common/base/status_testing.h"
#include "raas_receiver/replica/replica_fixture.h"

namespace lockstep::origin {
namespace {

// A source that has some blocks of a model, and some deltas of it: entry by entry, and only half of one it has not.
class PartSource : public pull::BlockSource {
 public:
  PartSource(const replica::TestModel& model, std::function<bool(uint64_t)> has)
      : model_(model), has_(std::move(has)) {}

  std::string_view name() const override { return "part"; }
  Status FetchBlocks(const pull::FullRequest& request, pull::BlockSink& sink) override {
    asked.push_back(request.blocks.size());
    Status status = cancelled ? Status(ErrorCode::kCancelled, "cancelled") : OkStatus();
    for (const BlockIndex block : request.blocks) {
      if (!has_(block)) status = {ErrorCode::kNotFound, "block"};
      if (!cancelled && has_(block)) Put(request.version, block, sink);
    }
    return status;
  }
  Status FetchDeltas(const pull::DeltaRequest& request, pull::DeltaSink& sink) override {
    asked.push_back(request.steps.size());
    Status status;
    for (const pull::DeltaStep& step : request.steps) {
      std::vector<payload::DeltaBlock> entries = model_.DeltaBlocks(step.base, step.target);
      if (!has_(step.payload_id)) {
        status = {ErrorCode::kNotFound, "delta"};
        entries.resize(entries.size() / 2);
      }
      for (payload::DeltaBlock& entry : entries) LS_RETURN_IF_ERROR(sink.PutEntry(step.payload_id, std::move(entry)));
    }
    return status;
  }
  void Cancel() override { cancelled = true; }
  pull::SourceCounters counters() const override { return {.payload_bytes = 100, .local_bytes = 10, .bytes_per_s = 7}; }

  std::vector<size_t> asked;  // by each fetch
  bool cancelled = false;

 private:
  void Put(Version version, BlockIndex block, pull::BlockSink& sink) {
    const ByteView bytes = model_.block_of(version, block);
    const wire::FrameHeader frame{.block = block, .version = version, .block_hash = model::BlockHash(bytes)};
    std::copy(bytes.begin(), bytes.end(), sink.Destination(frame).begin());
    CHECK(sink.Put(frame, bytes).ok());
  }

  const replica::TestModel& model_;
  const std::function<bool(uint64_t)> has_;
};

struct Fixture {
  replica::ReplicaFixture replicas;
  replica::TestModel& model = replicas.model;
  Fetcher fetcher{"actor"};
  std::vector<PartSource*> sources;

  Fixture() {
    replicas.Open();
    for (int version = 0; version < 4; ++version) model.Advance();
    REQUIRE(replicas.pair().BeginFull(model.layout()).ok());
  }
  void Use(std::vector<std::function<bool(uint64_t)>> parts) {
    std::vector<std::shared_ptr<pull::BlockSource>> made;
    for (auto& has : parts) {
      auto source = std::make_unique<PartSource>(model, std::move(has));
      sources.push_back(source.get());
      made.push_back(std::move(source));
    }
    fetcher.Use(std::move(made));
  }
  FullStaging Staging() {
    return {*model.layout(), [this](BlockIndex block) { return replicas.pair().target_block(block); }};
  }
  pull::FullRequest All(Version version) const {
    pull::FullRequest request{.blocks = std::vector<BlockIndex>(model.layout()->block_count()), .version = version};
    std::iota(request.blocks.begin(), request.blocks.end(), 0);
    return request;
  }
  std::vector<pull::DeltaStep> Steps(Version base, Version target) const {
    std::vector<pull::DeltaStep> steps;
    for (Version version = base; version < target; ++version) {
      const auto delta = model.Delta(version, version + 1);
      const payload::PayloadHeader& header = delta->header();
      steps.push_back({.payload_id = version,
                       .base = version,
                       .target = version + 1,
                       .target_digest = header.target_digest,
                       .entries = header.entries,
                       .data_bytes = header.data_bytes});
    }
    return steps;
  }
};

TEST_CASE("Each source is asked for what those before it did not bring, until nothing is missing") {
  Fixture fixture;
  fixture.Use({[](uint64_t block) { return block % 2 == 0; }, [](uint64_t block) { return block != 3; },
               [](uint64_t) { return true; }, [](uint64_t) { return true; }});
  FullStaging staging = fixture.Staging();
  REQUIRE(fixture.fetcher.FetchBlocks(fixture.All(2), staging).ok());
  const size_t blocks = fixture.model.layout()->block_count();
  CHECK(fixture.sources[0]->asked == std::vector<size_t>{blocks});
  CHECK(fixture.sources[1]->asked == std::vector<size_t>{blocks / 2});
  CHECK(fixture.sources[2]->asked == std::vector<size_t>{1});
  CHECK(fixture.sources[3]->asked.empty());
  for (BlockIndex block = 0; block < blocks; ++block) {
    const auto bytes = fixture.replicas.pair().target_block(block);
    CHECK(std::ranges::equal(bytes, fixture.model.block_of(2, block)));
    CHECK(staging.versions()[block] == 2);
  }
}

TEST_CASE("What no source has is the last one's error, and what came stays") {
  Fixture fixture;
  fixture.Use({[](uint64_t block) { return block != 3; }, [](uint64_t) { return false; }});
  FullStaging staging = fixture.Staging();
  CHECK(fixture.fetcher.FetchBlocks(fixture.All(1), staging).code() == ErrorCode::kNotFound);
  CHECK(staging.Missing() == std::vector<BlockIndex>{3});
  CHECK(fixture.sources[1]->asked == std::vector<size_t>{1});
}

TEST_CASE("Blocks that came before are fetched again when they are wanted again") {
  Fixture fixture;
  fixture.Use({[](uint64_t) { return true; }});
  FullStaging staging = fixture.Staging();
  REQUIRE(fixture.fetcher.FetchBlocks(fixture.All(1), staging).ok());
  REQUIRE(fixture.fetcher.FetchBlocks({{2, 5}, 3, true}, staging).ok());
  CHECK(fixture.sources[0]->asked.back() == 2);
  CHECK(staging.versions()[1] == 1);
  CHECK(staging.versions()[2] == 3);
  CHECK(staging.versions()[5] == 3);
}

TEST_CASE("A delta of no entries is named to the first source alone") {
  Fixture fixture;
  fixture.Use({[](uint64_t) { return true; }, [](uint64_t) { return true; }});
  std::vector<pull::DeltaStep> steps{{.payload_id = 1, .base = 2, .target = 2}};  // between equal versions
  DeltaStaging staging(*fixture.model.layout(), fixture.model.run(), steps);
  CHECK(fixture.fetcher.FetchDeltas(staging).ok());
  CHECK(fixture.sources[0]->asked == std::vector<size_t>{1});
  CHECK(fixture.sources[1]->asked.empty());
}

TEST_CASE("A delta that came in part is fetched whole from the next source, those that are whole are not") {
  Fixture fixture;
  fixture.Use({[](uint64_t payload) { return payload != 2; }, [](uint64_t) { return true; }});
  DeltaStaging staging(*fixture.model.layout(), fixture.model.run(), fixture.Steps(1, 4));
  REQUIRE(fixture.fetcher.FetchDeltas(staging).ok());
  CHECK(fixture.sources[0]->asked == std::vector<size_t>{3});
  CHECK(fixture.sources[1]->asked == std::vector<size_t>{1});
  const auto chain = staging.Assemble(fixture.model.manifest(1).digest, 0);
  REQUIRE(chain.ok());
  REQUIRE(chain->size() == 3);
  for (Version base = 1; base < 4; ++base) {
    CHECK(std::ranges::equal((*chain)[base - 1]->bytes(), fixture.model.Delta(base, base + 1)->bytes()));
  }
}

TEST_CASE("Deltas that no source has are the last one's error") {
  Fixture fixture;
  fixture.Use({[](uint64_t payload) { return payload != 2; }});
  DeltaStaging staging(*fixture.model.layout(), fixture.model.run(), fixture.Steps(1, 4));
  CHECK(fixture.fetcher.FetchDeltas(staging).code() == ErrorCode::kNotFound);
}

TEST_CASE("A delta of more entries or bytes than planned is refused") {
  Fixture fixture;
  fixture.Use({[](uint64_t) { return true; }});
  std::vector<pull::DeltaStep> steps = fixture.Steps(1, 2);
  const auto fetched = [&] {
    DeltaStaging staging(*fixture.model.layout(), fixture.model.run(), steps);
    return fixture.fetcher.FetchDeltas(staging);
  };
  REQUIRE(fetched().ok());
  --steps[0].data_bytes;
  CHECK_THAT(fetched(), FailsWith(ErrorCode::kProtocol, "bytes planned to version 2"));
  ++steps[0].data_bytes;
  --steps[0].entries;
  CHECK_THAT(fetched(), FailsWith(ErrorCode::kProtocol, "bytes planned to version 2"));
}

TEST_CASE("Cancelling reaches the sources in use and those that come later") {
  Fixture fixture;
  fixture.Use({[](uint64_t) { return true; }, [](uint64_t) { return true; }});
  fixture.fetcher.Cancel();
  CHECK(fixture.sources[0]->cancelled);
  FullStaging staging = fixture.Staging();
  CHECK(fixture.fetcher.FetchBlocks(fixture.All(1), staging).code() == ErrorCode::kCancelled);
  fixture.Use({[](uint64_t) { return true; }});
  CHECK(fixture.sources.back()->cancelled);
}

TEST_CASE("Counters are those of all sources in use together") {
  Fixture fixture;
  CHECK(fixture.fetcher.counters().payload_bytes == 0);
  fixture.Use({[](uint64_t) { return true; }, [](uint64_t) { return true; }});
  CHECK(fixture.fetcher.counters().payload_bytes == 200);
  CHECK(fixture.fetcher.counters().local_bytes == 20);
  CHECK(fixture.fetcher.counters().bytes_per_s == 7);
}

}  // namespace
}  // namespace lockstep::origin
