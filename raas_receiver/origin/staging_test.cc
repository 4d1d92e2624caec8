#include "raas_receiver/origin/staging.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "common/base/status_testing.h"
#include "raas_receiver/replica/test_model.h"

namespace lockstep::origin {
namespace {

// Four versions of a model.
struct Fixture {
  replica::TestModel model;

  Fixture() {
    for (int version = 0; version < 4; ++version) model.Advance();
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
  // Puts the steps of `request`; of `half` only the first half of its entries.
  Status Put(const pull::DeltaRequest& request, DeltaStaging& staging, uint64_t half = 0) const {
    for (const pull::DeltaStep& step : request.steps) {
      std::vector<payload::DeltaBlock> entries = model.DeltaBlocks(step.base, step.target);
      if (step.payload_id == half) entries.resize(entries.size() / 2);
      for (payload::DeltaBlock& entry : entries) {
        LS_RETURN_IF_ERROR(staging.PutEntry(step.payload_id, std::move(entry)));
      }
    }
    return OkStatus();
  }
};

}  // namespace

TEST_CASE("Blocks that came before are missing when they are wanted again") {
  Fixture fixture;
  FullStaging staging(*fixture.model.layout(), [](BlockIndex) { return std::span<std::byte>(); });
  staging.Expect({1, 2, 5});
  for (const BlockIndex block : {1, 2, 5}) REQUIRE(staging.Put({.block = block, .version = 1}, {}).ok());
  CHECK(staging.Missing().empty());
  staging.Expect({2, 5});
  CHECK(staging.Missing() == std::vector<BlockIndex>{2, 5});
  REQUIRE(staging.Put({.block = 2, .version = 3}, {}).ok());
  CHECK(staging.Missing() == std::vector<BlockIndex>{5});
  CHECK(staging.versions()[1] == 1);
  CHECK(staging.versions()[2] == 3);
}

TEST_CASE("A delta of no entries is named once") {
  Fixture fixture;
  const std::vector<pull::DeltaStep> steps{{.payload_id = 1, .base = 2, .target = 2}};  // between equal versions
  DeltaStaging staging(*fixture.model.layout(), fixture.model.run(), steps);
  CHECK(staging.TakeMissing().steps.size() == 1);
  CHECK(staging.TakeMissing().steps.empty());
}

TEST_CASE("A delta that came in part is missing whole, and those that are whole are not") {
  Fixture fixture;
  DeltaStaging staging(*fixture.model.layout(), fixture.model.run(), fixture.Steps(1, 4));
  REQUIRE(fixture.Put(staging.TakeMissing(), staging, /*half=*/2).ok());
  const pull::DeltaRequest missing = staging.TakeMissing();
  REQUIRE(missing.steps.size() == 1);
  CHECK(missing.steps[0].payload_id == 2);
  REQUIRE(fixture.Put(missing, staging).ok());
  const auto chain = staging.Assemble(fixture.model.manifest(1).digest, 0);
  REQUIRE(chain.ok());
  REQUIRE(chain->size() == 3);
  for (Version base = 1; base < 4; ++base) {
    CHECK(std::ranges::equal((*chain)[base - 1]->bytes(), fixture.model.Delta(base, base + 1)->bytes()));
  }
}

TEST_CASE("A delta of more entries or bytes than planned is refused") {
  Fixture fixture;
  std::vector<pull::DeltaStep> steps = fixture.Steps(1, 2);
  const auto put = [&] {
    DeltaStaging staging(*fixture.model.layout(), fixture.model.run(), steps);
    return fixture.Put(staging.TakeMissing(), staging);
  };
  REQUIRE(put().ok());
  --steps[0].data_bytes;
  CHECK_THAT(put(), FailsWith(ErrorCode::kProtocol, "bytes planned to version 2"));
  ++steps[0].data_bytes;
  --steps[0].entries;
  CHECK_THAT(put(), FailsWith(ErrorCode::kProtocol, "bytes planned to version 2"));
}

}  // namespace lockstep::origin
