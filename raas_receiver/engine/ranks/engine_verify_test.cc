// What memory is compared, trusted and proved: of engines that are written in place, and of those that only compare.
#include "common/base/status_testing.h"
#include "raas_receiver/engine/ranks/engine_ranks.h"
#include "raas_receiver/engine/ranks/ranks_fixture.h"

namespace lockstep::engine {
namespace {

// An engine of two ranks that loaded `version` by itself.
struct TwoCompare : RanksFixture {
  explicit TwoCompare(Version version) {
    options.compare_only = true;
    REQUIRE(Start().ok());
    for (const uint32_t number : {0, 1}) {
      AddRank(number, [](TestRankOptions& to) { to.compares = true; }).Load(version);
    }
  }
  void Run(uint32_t number) {
    ranks[number]->StartThread();
    REQUIRE(Changed(1));
  }
};

}  // namespace

TEST_CASE("A rank that a comparison refuses is no group that it compares") {
  TwoRanks engine;
  engine.ServeFirst();
  const LayoutDigest other = replica::TestModel(5, 30'000).layout()->digest();
  RankHandle& late = engine.RunRank(0, [&](TestRankOptions& options) {
    options.group = 1;
    options.layout = other;
  });
  REQUIRE(engine.Changed(1));
  const auto compared = engine.engine_ranks->Verify(engine.Target(1));
  INFO(compared.status().ToString());
  REQUIRE(compared.ok());
  CHECK(*compared == 1);
  CHECK(engine.engine_ranks->Describe().size() == 1);
  CHECK(Eventually([&] { return late.status().refused.load(); }));
}

TEST_CASE("Memory that is doubted is written wholly where it differs, also of an engine that lacks a rank just then") {
  const bool lacks_rank = GENERATE(true, false);
  TwoRanks engine;
  engine.ServeFirst();
  if (lacks_rank) {
    engine.ranks[1]->End();
    REQUIRE(engine.Changed(1));
  }
  engine.ranks[0]->memory()[100] ^= std::byte{1};
  engine.engine_ranks->Doubt();
  if (lacks_rank) {
    engine.ranks[1]->StartThread();
    REQUIRE(engine.Changed(1));
  }
  CHECK(engine.engine_ranks->Behind(engine.model.held(1)));
  REQUIRE(engine.Bring(1).ok());
  CHECK(engine.ranks[0]->Is(1));
  CHECK(Eventually([&] { return engine.ranks[1]->Serves(1); }));
}

TEST_CASE("An engine that lacks a rank or is doubted is not known to be at a version, whatever its ranks read") {
  const bool lacks_rank = GENERATE(true, false);
  TwoRanks engine;
  engine.ServeFirst();
  CHECK(engine.report().at == engine.model.held(1));
  if (lacks_rank) {
    engine.ranks[1]->End();
    REQUIRE(engine.Changed(1));
  } else {
    engine.engine_ranks->Doubt();
  }
  CHECK(engine.report().at.nothing());
  CHECK(engine.report().serving() == engine.model.held(1));
}

TEST_CASE("Verify names the rank with changed memory, and an engine that serves another version") {
  TwoRanks engine;
  engine.ServeFirst();
  CHECK(engine.engine_ranks->Verify(engine.Target(2)).status().code() == ErrorCode::kState);
  CHECK(engine.engine_ranks->Verify(engine.Target(1)).ok());
  const uint64_t at = GENERATE(true, false) ? engine.ranks[1]->parts().padding() : 100;
  engine.ranks[1]->memory()[at] ^= std::byte{1};
  const Status corrupt = engine.engine_ranks->Verify(engine.Target(1)).status();
  CHECK_THAT(corrupt, FailsWith(ErrorCode::kCorrupt, "engine tp2, rank 1"));
}

TEST_CASE("Engines that load versions by themselves are compared, and told nothing else") {
  TwoCompare engine(2);
  CHECK(*engine.engine_ranks->Verify(engine.Target(2)) == 0);
  engine.Run(0);
  CHECK_THAT(engine.engine_ranks->Verify(engine.Target(2)), FailsWith(ErrorCode::kState, "only 1 of its 2 ranks"));
  engine.Run(1);
  CHECK(*engine.engine_ranks->Verify(engine.Target(2)) == 1);
  CHECK(*engine.engine_ranks->Verify(engine.Target(2)) == 1);
  CHECK(engine.report().comparing == 2);
  CHECK(engine.report().waiting == 0);
  CHECK_FALSE(engine.engine_ranks->Reads(engine.model.held(2)));
  CHECK_THAT(engine.engine_ranks->Verify(engine.Target(3)), FailsWith(ErrorCode::kCorrupt, "than version 3"));
  engine.ranks[1]->memory()[engine.ranks[1]->parts().padding()] ^= std::byte{1};
  CHECK_THAT(engine.engine_ranks->Verify(engine.Target(2)), FailsWith(ErrorCode::kCorrupt, "engine tp2, rank 1"));
  for (auto& rank : engine.ranks) CHECK(rank->status().served == 0);
}

TEST_CASE("Ranks to be written and ranks that only compare are taken where they belong, and refused elsewhere") {
  const bool compare_only = GENERATE(true, false);
  RanksFixture fixture;
  fixture.options.compare_only = compare_only;
  REQUIRE(fixture.Start().ok());
  RankHandle& rank = fixture.RunRank(0, [&](TestRankOptions& options) { options.compares = !compare_only; });
  REQUIRE(fixture.Changed(1));
  REQUIRE(fixture.engine_ranks->Admit(*fixture.model.layout()).ok());
  REQUIRE(Eventually([&] { return rank.status().refused.load(); }));
  CHECK_THAT(rank.status().sentence.data(),
             Catch::Contains(compare_only ? "LOCKSTEP_ENGINE_COMPARE=1" : "compares only"));
  CHECK(fixture.engine_ranks->empty());
}

}  // namespace lockstep::engine
