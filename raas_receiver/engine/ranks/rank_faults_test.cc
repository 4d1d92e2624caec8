// Ranks that stage, write or compare late, wrong, twice, or not at all: what is served is
// always one whole version.
#include "common/base/status_testing.h"
#include "raas_receiver/engine/ranks/ranks_fixture.h"

namespace lockstep::engine {
namespace {

// How long silent ranks are waited for. Those that answer must do so in it.
constexpr std::chrono::seconds kSilence{3};

struct OwnRanks : RanksFixture {
  explicit OwnRanks(const std::function<void(TestRankOptions&)>& adjust = {}) {
    options.pause_timeout = kSilence;
    REQUIRE(Start().ok());
    RunRank(0);
    RunRank(1, adjust).status().faulty = false;
    REQUIRE(Changed(2));
  }
  // Both ranks serve version 1, and the second one is faulty from here on.
  void ServeFirst() {
    const Status status = Bring(1);
    INFO(status.ToString());
    REQUIRE(status.ok());
    for (auto& rank : ranks) REQUIRE(Eventually([&] { return rank->Serves(1); }));
    ranks[1]->status().faulty = true;
  }
  // The second rank was lost; the first serves `version`, or waits (0), and with another second one both come to 3.
  void GoesOnFrom(Version version) {
    CHECK(report().attached == 1);  // at once, and no rank hears of it
    CHECK(report().serving() == (version == 0 ? VersionRef() : model.held(version)));
    if (version != 0) CHECK(Eventually([&] { return ranks[0]->Serves(version); }));
    if (version == 0) CHECK(ranks[0]->status().paused);  // it was written, and not told to serve
    CHECK(ranks[0]->status().wrong_reads == 0);
    RankHandle& lost = *ranks[1];
    REQUIRE(Eventually([&] { return lost.status().ended == 1; }));
    CHECK(lost.status().wrong_reads == 0);
    RankHandle& successor = RunRank(1);
    REQUIRE(Changed(1));
    REQUIRE(Bring(3, 1).ok());
    CHECK(Eventually([&] { return successor.Serves(3) && ranks[0]->Serves(3); }));
  }
};

ErrorCode CodeOf(RankFault fault) {
  switch (fault) {
    case RankFault::kSilent:
      return ErrorCode::kDeadline;
    case RankFault::kHangsUp:
      return ErrorCode::kUnavailable;
    case RankFault::kRefuses:
      return ErrorCode::kAborted;
    default:
      return ErrorCode::kProtocol;
  }
}

RankFault AnyFault() {
  return GENERATE(RankFault::kSilent, RankFault::kWrong, RankFault::kHangsUp, RankFault::kTwice, RankFault::kRefuses);
}

}  // namespace

TEST_CASE("A rank that does not stage as it should costs the commit and nothing more") {
  const RankFault fault = AnyFault();
  OwnRanks engine([&](TestRankOptions& options) { options.at_stage = fault; });
  engine.ServeFirst();
  CHECK_THAT(engine.Bring(2, 1), FailsWith(CodeOf(fault), "engine tp2: ", "rank 1 (process ", " to "));
  engine.GoesOnFrom(1);
}

TEST_CASE("A rank that does not write as it should is dropped, and the others wait with what they have") {
  const RankFault fault = GENERATE(RankFault::kSilent, RankFault::kWrong, RankFault::kHangsUp, RankFault::kRefuses);
  OwnRanks engine([&](TestRankOptions& options) { options.at_write = fault; });
  engine.ServeFirst();
  CHECK_THAT(engine.Bring(2, 1), FailsWith(CodeOf(fault), "engine tp2: ", "rank 1 (process ", " to "));
  CHECK(Eventually([&] { return engine.ranks[1]->status().ended == 1; }));
  CHECK(engine.ranks[1]->status().paused);
  CHECK(engine.report().waiting == 1);
  CHECK(engine.ranks[0]->status().holding == 2);
  engine.GoesOnFrom(0);
}

TEST_CASE("A rank that says twice that it has written is found out with its next answer, and the commit stands") {
  OwnRanks engine([](TestRankOptions& options) { options.at_write = RankFault::kTwice; });
  engine.ServeFirst();
  REQUIRE(engine.Bring(2, 1).ok());
  CHECK(Eventually([&] { return engine.ranks[1]->Serves(2); }));
  engine.GoesOnFrom(2);
}

TEST_CASE("A rank that cannot compare what it says it holds is dropped") {
  const RankFault fault = GENERATE(RankFault::kSilent, RankFault::kWrong, RankFault::kHangsUp, RankFault::kRefuses);
  OwnRanks engine([&](TestRankOptions& options) { options.at_compare = fault; });
  engine.ServeFirst();
  engine.ranks[1]->End();
  REQUIRE(engine.Changed(1));
  engine.ranks[1]->StartThread();
  REQUIRE(engine.Changed(1));
  CHECK_THAT(engine.Bring(1), FailsWith(CodeOf(fault), "engine tp2: ", "rank 1 (process ", " to "));
  CHECK(engine.report().attached == 1);
  CHECK(engine.ranks[0]->Serves(1));
}

TEST_CASE("What was staged and is not written is dropped") {
  OwnRanks engine;
  engine.ServeFirst();
  REQUIRE(engine.Prepare(2, 1).ok());
  for (auto& rank : engine.ranks) CHECK(rank->status().at_hand > 0);
  engine.engine_ranks->Abandon();
  for (auto& rank : engine.ranks) CHECK(Eventually([&] { return rank->status().at_hand == 0; }));
  for (auto& rank : engine.ranks) CHECK(rank->Serves(1));
  REQUIRE(engine.Bring(3, 2).ok());
  for (auto& rank : engine.ranks) CHECK(Eventually([&] { return rank->Serves(3); }));
}

TEST_CASE("What was staged is dropped by the ranks that paused when another did not") {
  OwnRanks engine([](TestRankOptions& options) { options.at_pause = RankFault::kHangsUp; });
  engine.ranks[1]->End();  // it would hang up at the first pause
  REQUIRE(engine.Changed(1));
  engine.ranks.pop_back();
  engine.RunRank(1);
  REQUIRE(engine.Changed(1));
  engine.ServeFirst();
  engine.ranks[1]->End();
  REQUIRE(engine.Changed(1));
  engine.ranks[1]->options().at_pause = RankFault::kHangsUp;
  engine.ranks[1]->StartThread();
  REQUIRE(engine.Changed(1));
  CHECK(engine.Bring(2, 1).code() == ErrorCode::kUnavailable);
  CHECK(Eventually([&] { return engine.ranks[0]->status().at_hand == 0 && engine.ranks[0]->Serves(1); }));
}

TEST_CASE("A version goes in write batches of bounded size, and one written after the other holds no more than that") {
  OwnRanks engine;
  engine.ServeFirst();
  for (auto& rank : engine.ranks) {
    CHECK(rank->status().batches >= rank->parts().bytes() / engine.options.batch_bytes);
    CHECK(rank->status().most_at_hand == 1);
  }
}

TEST_CASE("What there is no memory for before the pause is translated, staged and written in it") {
  OwnRanks engine;
  engine.Stop();
  const uint64_t limit = GENERATE(0, 3000);
  engine.options.stage_bytes = limit;
  for (auto& rank : engine.ranks) rank->End();
  engine.ranks.clear();
  engine.seen = engine.changes;
  REQUIRE(engine.Start().ok());
  for (uint32_t rank : {0, 1}) engine.RunRank(rank);
  REQUIRE(engine.Changed(2));
  REQUIRE(engine.Bring(1).ok());
  REQUIRE(engine.Prepare(3, 1).ok());
  for (auto& rank : engine.ranks) CHECK(rank->status().at_hand <= (limit == 0 ? 0 : 1));
  REQUIRE(engine.engine_ranks->Commit().ok());
  for (auto& rank : engine.ranks) CHECK(Eventually([&] { return rank->Serves(3); }));
}

}  // namespace lockstep::engine
