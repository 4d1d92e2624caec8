#include "trainer_agent/run/streaming_delta.h"

#include <catch2/catch.hpp>

#include "common/base/status_testing.h"

namespace lockstep::run {
namespace {

std::shared_ptr<const payload::DeltaBlock> Block(BlockIndex block) {
  return std::make_shared<const payload::DeltaBlock>(payload::DeltaBlock{.block = block});
}

TEST_CASE("A reader gets every block once, in the order of their making, and then the end") {
  StreamingDelta delta(3, 4);
  delta.Add(Block(7));
  delta.Add(Block(2));
  const auto first = delta.Since(0);
  REQUIRE(first.blocks.size() == 2);
  CHECK(first.blocks[0]->block == 7);
  CHECK(first.blocks[1]->block == 2);
  CHECK_FALSE(first.sealed);
  delta.Add(Block(5));
  delta.Seal();
  const auto last = delta.Since(2);
  REQUIRE(last.blocks.size() == 1);
  CHECK(last.blocks[0]->block == 5);
  CHECK(last.sealed);
  CHECK(delta.Since(3).blocks.empty());
}

TEST_CASE("A delta that is aborted says why, and gives none of its blocks") {
  StreamingDelta delta(3, 4);
  delta.Add(Block(1));
  delta.Abort({ErrorCode::kAborted, "rank 2 vanished"});
  const auto update = delta.Since(0);
  CHECK(update.blocks.empty());
  CHECK_FALSE(update.sealed);
  CHECK_THAT(update.aborted, FailsWith(ErrorCode::kAborted, "rank 2 vanished"));
}

TEST_CASE(
    "A reader that waits is woken once, by many blocks or by the end, and does not wait when there is an update") {
  StreamingDelta delta(1, 2);
  const auto reader = std::make_shared<int>();
  int woken = 0;
  const auto wake = [&] { ++woken; };
  CHECK(delta.WakeOnUpdate(0, reader, wake));
  delta.Add(Block(0));
  CHECK(woken == 0);  // one block is not worth it
  CHECK_FALSE(delta.WakeOnUpdate(0, reader, wake));
  for (BlockIndex block = 1; block < 40; ++block) delta.Add(Block(block));
  CHECK(woken == 1);
  CHECK(delta.WakeOnUpdate(40, reader, wake));
  CHECK(woken == 1);
  delta.Seal();
  CHECK(woken == 2);
  CHECK_FALSE(delta.WakeOnUpdate(40, reader, wake));
}

TEST_CASE("A reader gets some hundred blocks at a time, and the end with the last of them") {
  StreamingDelta delta(1, 2);
  for (BlockIndex block = 0; block < 600; ++block) delta.Add(Block(block));
  delta.Seal();
  size_t seen = 0;
  for (int round = 0; round < 3; ++round) {
    const auto update = delta.Since(seen);
    CHECK(update.blocks.size() == (round < 2 ? 256 : 88));
    CHECK(update.sealed == (round == 2));
    seen += update.blocks.size();
  }
}

TEST_CASE("A reader that waits and goes away is dropped, however many there are") {
  WakeList list;
  for (int i = 0; i < 10'000; ++i) list.Add(std::make_shared<int>(), [] {});
  const auto stays = std::make_shared<int>();
  list.Add(stays, [] {});
  std::vector<Wake> wakes;
  list.Take(wakes);
  CHECK(wakes.size() <= 65);
}

TEST_CASE("A follower waits for the delta from the newest version, and is refused any other") {
  DeltaFeed feed;
  CHECK_THAT(feed.Find(1), FailsWith(ErrorCode::kState, "no delta from version 1 will be made; the newest is 0"));
  feed.SetNewest(5);
  REQUIRE(feed.Find(5).ok());
  CHECK(*feed.Find(5) == nullptr);
  CHECK_THAT(feed.Find(4), FailsWith(ErrorCode::kState, "no delta from version 4 will be made; the newest is 5"));
  const auto reader = std::make_shared<int>();
  int woken = 0;
  CHECK(feed.WakeWhenBegun(5, reader, [&] { ++woken; }));
  CHECK_FALSE(feed.WakeWhenBegun(4, reader, [&] { ++woken; }));
  CHECK(woken == 0);
  const auto delta = feed.Begin(5, 6);
  CHECK(woken == 1);
  CHECK(*feed.Find(5) == delta);
}

TEST_CASE("A sealed delta stays with its readers and is found by no others") {
  DeltaFeed feed;
  const auto first = feed.Begin(1, 2);
  first->Add(Block(9));
  first->Seal();
  feed.SetNewest(2);
  CHECK_THAT(feed.Find(1), FailsWith(ErrorCode::kState, "no delta from version 1 will be made; the newest is 2"));
  CHECK(*feed.Find(2) == nullptr);
  CHECK(first->Since(0).blocks.size() == 1);
}

TEST_CASE("Readers of a sealed delta keep it until two newer versions are served, and are woken then") {
  DeltaFeed feed;
  std::vector<std::shared_ptr<StreamingDelta>> deltas;
  int woken = 0;
  const auto reader = std::make_shared<int>();
  for (Version base = 1; base <= 3; ++base) {
    deltas.push_back(feed.Begin(base, base + 1));
    deltas.back()->Add(Block(9));
    if (base == 1) CHECK(deltas[0]->WakeOnUpdate(1, reader, [&] { ++woken; }));
    deltas.back()->Seal();
    feed.SetNewest(base + 1);
    CHECK(deltas[0]->Since(0).aborted.ok() == (base < 3));
  }
  CHECK(woken == 1);
  CHECK_THAT(deltas[0]->Since(0).aborted, FailsWith(ErrorCode::kAborted, "two newer versions are served"));
  CHECK(deltas[0]->Since(0).blocks.empty());
  CHECK(deltas[1]->Since(0).blocks.size() == 1);
}

TEST_CASE("A draft that was aborted is no longer found, and its readers get the reason") {
  DeltaFeed feed;
  const auto aborted = feed.Begin(1, 2);
  aborted->Abort({ErrorCode::kAborted, "gone"});
  feed.SetNewest(1);
  CHECK(*feed.Find(1) == nullptr);
  const auto next = feed.Begin(1, 3);
  CHECK(*feed.Find(1) == next);
  feed.Begin(1, 4);
  CHECK_THAT(next->Since(0).aborted, FailsWith(ErrorCode::kAborted, "another version was begun"));
}

TEST_CASE("The end of a run aborts what was being made, and wakes its readers") {
  DeltaFeed feed;
  const auto delta = feed.Begin(1, 2);
  feed.End();
  CHECK_THAT(delta->Since(0).aborted, FailsWith(ErrorCode::kAborted, "the run has ended"));
  CHECK_THAT(feed.Find(1), FailsWith(ErrorCode::kState, "no delta from version 1 will be made"));
}

TEST_CASE("A run is followed while a follower of it lives") {
  DeltaFeed feed;
  CHECK_FALSE(feed.followed());
  {
    const auto first = feed.Follow();
    { const auto second = feed.Follow(); }
    CHECK(feed.followed());
  }
  CHECK_FALSE(feed.followed());
}

}  // namespace
}  // namespace lockstep::run
