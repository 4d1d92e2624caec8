// Ranks that answer, do not, answer falsely, come and go: what they serve is always one whole version.
#include "raas_receiver/engine/ranks/engine_ranks.h"

#include "common/base/status_testing.h"
#include "raas_receiver/engine/ranks/ranks_fixture.h"

namespace lockstep::engine {
namespace {

// How long silent ranks are waited for. Those that answer must do so in it.
constexpr std::chrono::seconds kSilence{3};

}  // namespace

TEST_CASE("All ranks of an engine follow, forward and back") {
  TwoRanks engine(6);
  engine.ServeFirst();
  for (const auto& [version, before] : {std::pair<Version, Version>{2, 1}, {3, 2}, {6, 3}, {5, 6}, {1, 5}}) {
    REQUIRE(engine.Bring(version, before).ok());
    CHECK(engine.AllServe(version));
    CHECK_FALSE(engine.engine_ranks->Behind(engine.model.held(version)));
    CHECK(engine.engine_ranks->Behind(engine.model.held(before)));
    CHECK(engine.engine_ranks->Verify(engine.Target(version)).ok());
  }
  const RankGroupReport report = engine.report();
  CHECK(report.name == "tp2");
  CHECK(report.world == 2);
  CHECK(report.attached == 2);
  CHECK(report.parameters == 10);
  CHECK(report.target_bytes == engine.ranks[0]->parts().bytes() + engine.ranks[1]->parts().bytes());
  CHECK(report.commits == 6);
  CHECK(report.failures == 0);
  CHECK(report.last_pause.count() > 0);
  CHECK(report.last_written_bytes > 0);
  CHECK(report.last_error.empty());
}

TEST_CASE("Without kept deltas everything is written") {
  TwoRanks engine;
  engine.ServeFirst();
  REQUIRE(engine.Bring(2, 1).ok());
  const uint64_t changes = engine.report().last_written_bytes;
  engine.deltas_at_hand = false;
  REQUIRE(engine.Bring(3, 2).ok());
  CHECK(engine.AllServe(3));
  CHECK(engine.report().last_written_bytes > 2 * changes);
}

TEST_CASE("An engine that waits for ranks is left alone, and prepared once they are there") {
  TwoRanks engine;
  engine.RunRank(0);
  REQUIRE(engine.Changed(1));
  CHECK(engine.engine_ranks->Behind(engine.model.held(1)));  // a rank waits to be answered
  REQUIRE(engine.Prepare(1).ok());
  CHECK_FALSE(engine.engine_ranks->prepared());
  CHECK_FALSE(engine.engine_ranks->Behind(engine.model.held(1)));
  CHECK(engine.report().attached == 1);
  CHECK(engine.ranks[0]->status().attached == 0);
  engine.RunRank(1);
  REQUIRE(engine.Changed(1));
  REQUIRE(engine.Prepare(1).ok());
  CHECK(engine.engine_ranks->prepared());
  CHECK(Eventually([&] { return engine.ranks[0]->status().attached == 1; }));
  engine.engine_ranks->Abandon();
  CHECK_FALSE(engine.engine_ranks->prepared());
  CHECK(engine.ranks[0]->status().paused);
  REQUIRE(engine.Bring(1).ok());
  CHECK(engine.AllServe(1));
}

TEST_CASE("What was prepared and abandoned is no loss: the next version is right") {
  TwoRanks engine;
  engine.ServeFirst();
  REQUIRE(engine.Prepare(2, 1).ok());
  engine.engine_ranks->Abandon();
  CHECK(engine.AllServe(1));
  REQUIRE(engine.Bring(3, 2).ok());
  CHECK(engine.AllServe(3));
  CHECK(engine.asked.count({1, 3}) == 1);
}

TEST_CASE("An engine with a rank that is asleep is left alone, and gets the version once it is awake") {
  TwoRanks engine;
  engine.ServeFirst();
  const auto attach_again = [&](bool asleep) {
    engine.ranks[1]->End();
    REQUIRE(engine.Changed(1));
    engine.ranks[1]->options().asleep = asleep;
    engine.ranks[1]->StartThread();
    REQUIRE(engine.Changed(1));
  };
  engine.ranks[1]->status().paused = true;
  attach_again(true);
  REQUIRE(engine.Prepare(2, 1).ok());
  CHECK_FALSE(engine.engine_ranks->prepared());
  CHECK(engine.report().attached == 2);
  CHECK(engine.report().asleep == 1);
  CHECK(engine.report().waiting == 0);
  CHECK_FALSE(engine.engine_ranks->Behind(engine.model.held(2)));
  CHECK_FALSE(engine.engine_ranks->AllAt(engine.model.held(1)));
  CHECK_THAT(engine.engine_ranks->Verify(engine.Target(1)), FailsWith(ErrorCode::kState, "engine tp2 is asleep"));
  CHECK(engine.ranks[0]->Serves(1));

  engine.ranks[1]->status().holding = 0;
  std::fill_n(engine.ranks[1]->memory(), 100, std::byte{0});  // whatever it woke with
  attach_again(false);
  CHECK(engine.engine_ranks->Behind(engine.model.held(2)));
  REQUIRE(engine.Bring(2, 1).ok());
  CHECK(engine.AllServe(2));
}

TEST_CASE("Ranks that wait are brought to what the others read, which are not held for it, and then all go on") {
  TwoRanks engine;
  engine.ServeFirst();
  engine.ranks[1]->End();
  REQUIRE(engine.Changed(1));
  engine.ranks[1]->status().paused = true;
  const Version holding = GENERATE(0, 1, 2);  // a mix, what the others read, or what was to be served
  engine.ranks[1]->status().holding = holding;
  if (holding == 0) engine.ranks[1]->memory()[100] ^= std::byte{1};
  if (holding == 2)
    std::copy_n(engine.ranks[1]->ImageOf(2).data(), engine.ranks[1]->parts().bytes(), engine.ranks[1]->memory());
  engine.ranks[1]->StartThread();
  REQUIRE(engine.Changed(1));
  CHECK(engine.engine_ranks->Reads(engine.model.held(1)));
  CHECK_FALSE(engine.engine_ranks->Reads(engine.model.held(2)));
  REQUIRE(engine.Prepare(2, 1).ok());
  CHECK(engine.AllServe(1));
  CHECK(engine.ranks[0]->status().served == 1);
  CHECK(engine.ranks[1]->status().served == 2);
  REQUIRE(engine.engine_ranks->Commit().ok());
  CHECK(engine.AllServe(2));
}

TEST_CASE("What a lost rank reads counts as read for as long as it may come back") {
  TwoRanks engine;
  engine.Stop();
  engine.options.comes_back = std::chrono::seconds(1);
  REQUIRE(engine.Start().ok());
  CHECK(engine.engine_ranks->Reads(engine.model.held(3)));  // by ranks that outlived another receiver, perhaps
  CHECK(Eventually([&] { return !engine.engine_ranks->Reads(engine.model.held(3)); }));
  engine.ServeFirst();
  engine.ranks[1]->End();
  REQUIRE(engine.Changed(1));
  engine.ranks[0]->End();
  REQUIRE(engine.Changed(1));
  CHECK(engine.engine_ranks->empty());
  CHECK(engine.engine_ranks->Reads(engine.model.held(1)));
  CHECK_FALSE(engine.engine_ranks->Reads(engine.model.held(3)));
  CHECK(engine.engine_ranks->ranks_back_by() > std::chrono::steady_clock::now());
  CHECK(Eventually([&] { return !engine.engine_ranks->Reads(engine.model.held(1)); }));
}

TEST_CASE("A rank that goes between commits is noticed, and the engine waits for another, which gets everything") {
  TwoRanks engine;
  engine.ServeFirst();
  engine.ranks[1]->End();
  REQUIRE(engine.Changed(1));
  CHECK(engine.report().attached == 1);
  REQUIRE(engine.Bring(2, 1).ok());
  CHECK(engine.ranks[0]->Serves(1));
  engine.ranks.pop_back();
  engine.RunRank(1);
  REQUIRE(engine.Changed(1));
  REQUIRE(engine.Bring(2, 1).ok());
  CHECK(engine.AllServe(2));
  CHECK(engine.ranks[0]->status().attached == 1);
  REQUIRE(engine.Bring(3, 2).ok());
  CHECK(engine.AllServe(3));
}

TEST_CASE("When the last rank goes nothing is left of the engine") {
  TwoRanks engine;
  engine.ServeFirst();
  engine.ranks.clear();
  REQUIRE(engine.Changed(1));
  CHECK(engine.engine_ranks->empty());
  CHECK(engine.engine_ranks->Describe().empty());
}

TEST_CASE("A rank that does not pause, or answers something else, costs the commit and nothing more") {
  const RankFault fault = GENERATE(RankFault::kSilent, RankFault::kWrong, RankFault::kHangsUp);
  TwoRanks engine;
  engine.Stop();
  engine.options.pause_timeout = kSilence;
  REQUIRE(engine.Start().ok());
  engine.ServeFirst();
  engine.ranks.back()->End();
  REQUIRE(engine.Changed(1));
  // The same memory of a rank that knows what it holds, but fails now.
  engine.ranks.back()->options().at_pause = fault;
  engine.ranks.back()->StartThread();
  REQUIRE(engine.Changed(1));
  REQUIRE(engine.Bring(1).ok());
  REQUIRE(engine.AllServe(1));

  const Status status = engine.Bring(2, 1);
  const ErrorCode code = fault == RankFault::kSilent  ? ErrorCode::kDeadline
                         : fault == RankFault::kWrong ? ErrorCode::kProtocol
                                                      : ErrorCode::kUnavailable;
  CHECK_THAT(status, FailsWith(code, "engine tp2: ", "rank 1 (process ", " to pause"));
  CHECK(engine.report().serving() == engine.model.held(1));
  CHECK(engine.report().attached == 1);
  CHECK(engine.report().failures == 1);
  CHECK(engine.report().last_error == status.message());
  CHECK(Eventually([&] { return engine.ranks[0]->Serves(1); }));

  // One that takes its place does not lead the other astray, which has not noticed yet that it was dropped.
  RankHandle& successor = engine.RunRank(1);
  REQUIRE(engine.Changed(1));
  REQUIRE(engine.Bring(3, 1).ok());
  CHECK(Eventually([&] { return successor.Serves(3); }));
  CHECK(Eventually([&] { return engine.ranks[0]->Serves(3); }));
  CHECK(engine.ranks[1]->status().ended >= 1);
  CHECK((engine.ranks[1]->status().paused || engine.ranks[1]->Serves(1)));
  CHECK(engine.ranks[1]->status().wrong_reads == 0);
}

TEST_CASE("A rank that does not answer SERVE is dropped, and the commit stands") {
  const RankFault fault = GENERATE(RankFault::kSilent, RankFault::kWrong, RankFault::kHangsUp);
  RanksFixture engine;
  engine.options.serve_timeout = kSilence;
  REQUIRE(engine.Start().ok());
  RankHandle& good = engine.RunRank(0);
  RankHandle& bad = engine.RunRank(1, [&](TestRankOptions& options) { options.at_serve = fault; });
  REQUIRE(engine.Changed(2));
  REQUIRE(engine.Bring(1).ok());
  CHECK(engine.report().serving() == engine.model.held(1));
  CHECK(engine.report().attached == 1);
  CHECK(Eventually([&] { return good.Serves(1); }));

  // The one that was not told has the version all the same, and serves it once a successor of its connection asks.
  REQUIRE(Eventually([&] { return bad.status().ended == 1; }));
  bad.End();
  if (fault == RankFault::kSilent) CHECK(bad.status().paused);
  CHECK(bad.status().holding == 1);
  bad.options().at_serve = RankFault::kNone;
  bad.StartThread();
  REQUIRE(engine.Changed(1));
  REQUIRE(engine.Bring(1).ok());
  CHECK(Eventually([&] { return good.Serves(1) && bad.Serves(1); }));
  CHECK(good.status().served == 1);  // it took no part
}

TEST_CASE("A rank that says what it holds is believed when every byte is that") {
  TwoRanks engine;
  engine.ServeFirst();
  engine.ranks[1]->End();
  REQUIRE(engine.Changed(1));

  SECTION("and then nothing is written") {
    engine.ranks[1]->StartThread();
    REQUIRE(engine.Changed(1));
    REQUIRE(engine.Prepare(1).ok());
    CHECK_FALSE(engine.engine_ranks->prepared());
    CHECK(engine.AllServe(1));
    CHECK(engine.report().commits == 1);
  }
  SECTION("also of the version before, which deltas lead from") {
    engine.ranks[1]->StartThread();
    REQUIRE(engine.Changed(1));
    REQUIRE(engine.Bring(2, 1).ok());
    CHECK(engine.AllServe(2));
    CHECK(engine.asked == std::set<std::pair<Version, Version>>{{1, 2}});
  }
  SECTION("and else gets everything") {
    const uint64_t at = GENERATE(true, false) ? engine.ranks[1]->parts().padding() : 100;
    engine.ranks[1]->memory()[at] ^= std::byte{1};
    engine.ranks[1]->StartThread();
    REQUIRE(engine.Changed(1));
    REQUIRE(engine.Bring(1).ok());
    CHECK(engine.report().commits == 2);
    CHECK(Eventually([&] { return engine.ranks[1]->status().served >= 2; }));
    CHECK(engine.ranks[1]->Is(1));
    CHECK(engine.ranks[0]->Serves(1));
  }
}

TEST_CASE("Ranks that outlive their receiver are taken as they are by the next") {
  TwoRanks engine;
  for (uint32_t rank : {0, 1}) {
    engine.RunRank(rank, [](TestRankOptions& options) { options.reattach = true; });
  }
  REQUIRE(engine.Changed(2));
  REQUIRE(engine.Bring(1).ok());
  REQUIRE(engine.Bring(2, 1).ok());
  engine.Stop();
  REQUIRE(engine.Start().ok());
  REQUIRE(engine.Changed(2));
  engine.asked.clear();

  SECTION("at the version that the receiver has") {
    REQUIRE(engine.Prepare(2).ok());
    CHECK_FALSE(engine.engine_ranks->prepared());
    CHECK(engine.AllServe(2));
    CHECK_FALSE(engine.engine_ranks->Behind(engine.model.held(2)));
  }
  SECTION("or one before") {
    REQUIRE(engine.Bring(3, 2).ok());
    CHECK(engine.AllServe(3));
    CHECK(engine.asked.count({2, 3}) == 1);
  }
  SECTION("or one that it does not know any more") {
    REQUIRE(engine.Bring(3).ok());
    CHECK(engine.AllServe(3));
    CHECK(engine.asked.empty());
  }
}

TEST_CASE("Each rank may have tensors that others lack, as long as one has them") {
  RanksFixture fixture;
  REQUIRE(fixture.Start().ok());
  fixture.RunRank(0, [](TestRankOptions& options) { options.without = "norm"; });
  fixture.RunRank(1, [](TestRankOptions& options) { options.without = "scale"; });
  REQUIRE(fixture.Changed(2));
  REQUIRE(fixture.Bring(1).ok());
  REQUIRE(fixture.Bring(2, 1).ok());
  CHECK(fixture.asked == std::set<std::pair<Version, Version>>{{1, 2}});
  for (const auto& rank : fixture.ranks) CHECK(Eventually([&] { return rank->Serves(2); }));
  CHECK(fixture.engine_ranks->Verify(fixture.Target(2)).ok());
}

TEST_CASE("A model with another layout is placed again") {
  TwoRanks engine;
  engine.ServeFirst();
  replica::TestModel next(2, 20'000, {{"config.json", "{}"}});
  next.Advance();
  REQUIRE(next.layout()->digest() != engine.model.layout()->digest());
  const VersionData target{next.held(1), next.layout(), next.data(1)};
  const auto none = [](const VersionRef&, const VersionRef&) { return payload::DeltaChain(); };
  REQUIRE(engine.engine_ranks->Prepare({target, engine.Target(1), none}).ok());
  REQUIRE(engine.engine_ranks->Commit().ok());
  CHECK(engine.engine_ranks->Verify(target).ok());
  for (uint32_t rank : {0, 1}) CHECK(TestRankMemory(next, rank).Is(1, engine.ranks[rank]->memory()));
}

TEST_CASE("Of ranks without a gate only those of the server that is paused are written") {
  using Names = std::vector<std::string>;
  const Names names = GENERATE(Names{"one", "one"}, Names{"two", "one"}, Names{"two"}, Names{"one-1"}, Names{});
  const bool taken = !names.empty() && names.back() == "one";
  RanksFixture fixture;
  fixture.options.paused_server = [&] { return names; };
  REQUIRE(fixture.Start().ok());
  for (const uint32_t rank : {0, 1}) fixture.RunRank(rank, [](TestRankOptions& options) { options.gated = false; });
  REQUIRE(fixture.Changed(2));
  CHECK(fixture.Bring(1).ok() == taken);
  CHECK(fixture.engine_ranks->AllAt(fixture.model.held(1)) == taken);
  for (auto& rank : fixture.ranks) {
    CHECK(Eventually([&] { return taken ? rank->Serves(1) : rank->status().refused.load(); }));
    if (taken) continue;
    CHECK_FALSE(rank->Is(1));
    CHECK_THAT(rank->status().sentence.data(),
               Catch::Contains("is not of the server that is paused for engine default"));
  }
}

TEST_CASE("Ranks without a gate are refused where no server is paused, and wait while theirs does not answer") {
  const bool pauses = GENERATE(true, false);
  RanksFixture fixture;
  Result<std::vector<std::string>> answer = Status(ErrorCode::kUnavailable, "it starts");
  if (pauses) fixture.options.paused_server = [&] { return answer; };
  REQUIRE(fixture.Start().ok());
  for (const uint32_t rank : {0, 1}) fixture.RunRank(rank, [](TestRankOptions& options) { options.gated = false; });
  REQUIRE(fixture.Changed(2));
  const Status prepared = fixture.Prepare(1);
  if (!pauses) {
    for (auto& rank : fixture.ranks) CHECK(Eventually([&] { return rank->status().refused.load(); }));
    CHECK_THAT(fixture.ranks[0]->status().sentence.data(), Catch::Contains("name the kind of the server"));
    return;
  }
  CHECK_THAT(prepared, FailsWith(ErrorCode::kUnavailable, "it starts"));
  CHECK(fixture.engine_ranks->Behind(fixture.model.held(1)));
  answer = std::vector<std::string>{"one"};
  REQUIRE(fixture.Bring(1).ok());
  for (auto& rank : fixture.ranks) CHECK(Eventually([&] { return rank->Serves(1); }));
}

TEST_CASE("An engine that the model no longer fits is refused, and may come back") {
  TwoRanks engine;
  engine.ServeFirst();
  replica::TestModel larger(2, 40'000);
  larger.Advance();
  const auto none = [](const VersionRef&, const VersionRef&) { return payload::DeltaChain(); };
  const Status status = engine.engine_ranks->Prepare({{larger.held(1), larger.layout(), larger.data(1)}, {}, none});
  CHECK(status.code() == ErrorCode::kBadData);
  CHECK_FALSE(engine.engine_ranks->prepared());
  CHECK(engine.engine_ranks->empty());
  for (auto& rank : engine.ranks) {
    CHECK(Eventually([&] { return rank->status().refused.load(); }));
    CHECK(rank->Serves(1));
  }
}

}  // namespace lockstep::engine
