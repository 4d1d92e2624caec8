#include "trainer_agent/store/delta_store.h"

#include <catch2/catch.hpp>
#include <random>
#include <thread>
#include <utility>

#include "common/base/status_testing.h"
#include "common/os/file.h"
#include "common/os/temp_dir.h"
#include "common/payload/test_level.h"
#include "trainer_agent/store/store_fixture.h"

namespace lockstep::store {
namespace {

constexpr uint64_t kFull = 1 << 20;
constexpr Version kNewest = DeltaStore::kNewest;

WorkerPool pool(2);

TEST_CASE("One step behind is a delta, several are folded, unknown ones and dear ones go full") {
  const Chain chain;
  DeltaStore store(chain.layout, {.fold_pool = &pool});
  for (Version version = 1; version <= 3; ++version) REQUIRE(chain.Add(store, version).ok());
  const DeltaRoute delta = store.RouteFrom(3, kNewest, kFull, payload::CodecLevel::kFast);
  REQUIRE(delta.steps.size() == 1);
  CHECK_FALSE(delta.folded);
  const DeltaRoute folded = store.RouteFrom(1, kNewest, kFull, payload::CodecLevel::kFast);
  REQUIRE(folded.steps.size() == 1);
  CHECK(folded.folded);
  CHECK(folded.steps[0]->header().steps_folded == 3);
  CHECK(store.RouteFrom(1, kNewest, kFull, payload::CodecLevel::kFast).steps[0] == folded.steps[0]);
  CHECK(store.RouteFrom(9, kNewest, kFull, payload::CodecLevel::kFast).steps.empty());
  CHECK(store.RouteFrom(1, kNewest, 5, payload::CodecLevel::kFast).steps.empty());
  CHECK((*store.ChainFrom(1, kNewest)).size() == 3);
  CHECK_THAT(store.ChainFrom(0, kNewest),
             FailsWith(ErrorCode::kState, "the deltas from version 0 on are no longer retained"));
}

TEST_CASE("A route ends where it is to, also when a newer delta is retained already") {
  const Chain chain;
  DeltaStore store(chain.layout, {.fold_pool = &pool});
  for (Version version = 1; version <= 3; ++version) REQUIRE(chain.Add(store, version).ok());
  const DeltaRoute folded = store.RouteFrom(1, 3, kFull, payload::CodecLevel::kFast);
  REQUIRE(folded.folded);
  CHECK(folded.steps[0]->target().version == 3);
  CHECK(store.RouteFrom(2, 3, kFull, payload::CodecLevel::kFast).steps.size() == 1);
  CHECK(store.RouteFrom(3, 3, kFull, payload::CodecLevel::kFast).steps.empty());
}

TEST_CASE("Receivers two versions behind a full store get one fold, made once") {
  const Chain chain;
  constexpr uint64_t kPage = 4096;  // each of these deltas takes one
  DeltaStore store(chain.layout, {.retain_bytes = 3 * kPage, .fold_pool = &pool});
  for (Version version = 1; version <= 5; ++version) REQUIRE(chain.Add(store, version).ok());
  REQUIRE(store.Retained().size() == 3);
  std::vector<DeltaRoute> routes(64);
  std::vector<std::thread> receivers;
  for (DeltaRoute& route : routes) {
    receivers.emplace_back([&] { route = store.RouteFrom(4, kNewest, kFull, payload::CodecLevel::kFast); });
  }
  for (std::thread& receiver : receivers) receiver.join();
  CHECK(routes[0].folded);
  for (const DeltaRoute& route : routes) CHECK(route.steps == routes[0].steps);
  CHECK(store.RouteFrom(4, kNewest, kFull, payload::CodecLevel::kFast).steps == routes[0].steps);
  CHECK(store.Retained().size() == 4);
}

TEST_CASE("A fold that would take long is not begun: the chain is served") {
  const Chain chain;
  DeltaStore store(chain.layout, {.fold_pool = &pool});
  // A million changes in all, but the first of them would be looked at a thousand times.
  payload::Changes many;
  for (uint32_t i = 0; i < 1200; ++i) {
    many.positions.push_back(i);
    many.steps.push_back(1);
  }
  for (Version version = 1; version <= 1000; ++version) {
    REQUIRE(chain.Add(store, version, many, payload::CodecLevel::kFast).ok());
  }
  CHECK(store.RouteFrom(500, kNewest, 1 << 30, payload::CodecLevel::kFast).folded);
  const DeltaRoute route = store.RouteFrom(1, kNewest, 1 << 30, payload::CodecLevel::kFast);
  CHECK_FALSE(route.folded);
  CHECK(route.steps.size() == 1000);
}

TEST_CASE("A delta is served at any level above its own, each form made once and in fewer bytes") {
  const Chain chain;
  DeltaStore store(chain.layout, {.fold_pool = &pool});
  REQUIRE(chain.Add(store, 1, payload::RepetitiveChanges(500), payload::CodecLevel::kFast).ok());
  uint64_t bytes = kFull;
  for (const payload::CodecLevel level : {payload::CodecLevel::kFast, payload::CodecLevel::kCompact, payload::kHard}) {
    const DeltaRoute route = store.RouteFrom(1, kNewest, kFull, level);
    REQUIRE(route.steps.size() == 1);
    CHECK(route.level == level);
    CHECK(route.data_bytes() < bytes);
    CHECK(store.RouteFrom(1, kNewest, kFull, level).steps[0] == route.steps[0]);
    bytes = route.data_bytes();
  }
  CHECK(store.Retained().size() == 3);
}

TEST_CASE("A delta made at a level is served at it to whoever would do with less, and raised to more") {
  const Chain chain;
  DeltaStore store(chain.layout, {.fold_pool = &pool});
  REQUIRE(chain.Add(store, 1, payload::RepetitiveChanges(500), payload::CodecLevel::kCompact).ok());
  CHECK(store.RouteFrom(1, kNewest, kFull, payload::CodecLevel::kFast).level == payload::CodecLevel::kCompact);
  CHECK(store.RouteFrom(1, kNewest, kFull, payload::CodecLevel::kFast).steps ==
        store.RouteFrom(1, kNewest, kFull, payload::CodecLevel::kCompact).steps);
  CHECK(store.RouteFrom(1, kNewest, kFull, payload::kHard).level == payload::kHard);
  CHECK(store.RouteFrom(1, kNewest, kFull, payload::kHard).data_bytes() <
        store.RouteFrom(1, kNewest, kFull, payload::CodecLevel::kFast).data_bytes());
}

TEST_CASE("A chain whose fold does not pay is raised step by step, those below the level only") {
  const Chain chain;
  DeltaStore store(chain.layout, {.fold_pool = &pool});
  std::mt19937 random(3);
  // Together they change every element of the block to noise: no fold is smaller than the block.
  for (const auto& [base, level] :
       {std::pair(1u, payload::CodecLevel::kCompact), std::pair(2u, payload::CodecLevel::kFast)}) {
    payload::Changes noise;
    for (uint32_t i = 0; i < 1024; ++i) {
      noise.positions.push_back(2 * i + base % 2);
      noise.steps.push_back(1 + random() % 0xffff);
    }
    REQUIRE(chain.Add(store, base, noise, level).ok());
  }
  const payload::DeltaChain made = *store.ChainFrom(1, kNewest);
  const DeltaRoute fast = store.RouteFrom(1, kNewest, kFull, payload::CodecLevel::kFast);
  CHECK_FALSE(fast.folded);
  CHECK(fast.level == payload::CodecLevel::kFast);
  CHECK(fast.steps == made);
  const DeltaRoute raised = store.RouteFrom(1, kNewest, kFull, payload::CodecLevel::kCompact);
  CHECK(raised.level == payload::CodecLevel::kCompact);
  REQUIRE(raised.steps.size() == 2);
  CHECK(raised.steps[0] == made[0]);
  CHECK(raised.steps[1] != made[1]);
  CHECK(raised.data_bytes() < fast.data_bytes());
}

TEST_CASE("The budget evicts from the old end, unless a pull holds it, and then too in the end") {
  const Chain chain;
  constexpr uint64_t kPage = 4096;  // each of these deltas takes one
  DeltaStore store(chain.layout, {.retain_bytes = 3 * kPage, .fold_pool = &pool});
  for (Version version = 1; version <= 5; ++version) REQUIRE(chain.Add(store, version).ok());
  CHECK(store.Retained().size() == 3);
  CHECK(store.RouteFrom(2, kNewest, kFull, payload::CodecLevel::kFast).steps.empty());
  CHECK(store.MaxDeltaBytes() == 3 * kPage);
  auto hold = store.HoldFrom(3);
  CHECK(store.MaxDeltaBytes() == chain.layout->data_bytes());
  for (Version version = 6; version <= 10; ++version) REQUIRE(chain.Add(store, version).ok());
  CHECK(store.Retained().size() == 8);
  for (Version version = 11; version <= 40; ++version) REQUIRE(chain.Add(store, version).ok());
  CHECK(store.Retained().size() == (2 * 3 * kPage + chain.layout->data_bytes()) / kPage);
  hold.reset();
  CHECK(store.Retained().size() == 3);
}

TEST_CASE("A restarted agent finds the chain that ends at its newest version, and nothing else") {
  const Chain chain;
  const os::TempDir dir;
  {
    DeltaStore store(chain.layout, {.directory = dir.path(), .fold_pool = &pool});
    for (Version version = 1; version <= 4; ++version) REQUIRE(chain.Add(store, version).ok());
  }
  REQUIRE(os::WriteFileAtomic(dir.File("new"), "half a delta").ok());
  REQUIRE(os::WriteFileAtomic(dir.File("7-8.delta"), "rubbish").ok());
  {
    DeltaStore store(chain.layout, {.directory = dir.path(), .fold_pool = &pool});
    store.Load(chain.Newest(5));
    CHECK(store.Retained().size() == 4);
    CHECK_THAT(os::ReadFile(dir.File("new")), FailsWith(ErrorCode::kNotFound, dir.File("new")));
    CHECK_THAT(os::ReadFile(dir.File("7-8.delta")), FailsWith(ErrorCode::kNotFound, dir.File("7-8.delta")));
    REQUIRE(chain.Add(store, 5).ok());
    CHECK(store.RouteFrom(1, kNewest, kFull, payload::CodecLevel::kFast).folded);
  }
  DeltaStore other(chain.layout, {.directory = dir.path(), .fold_pool = &pool});
  other.Load({.held = {RandomId<RunId>(), 6}, .block_hashes = {}, .digest = DigestOf(6)});
  CHECK(other.Retained().empty());
}

TEST_CASE("A delta's file is opened for reading and outlives its name; folds and deltas on the heap have none") {
  const Chain chain;
  const os::TempDir dir;
  DeltaStore store(chain.layout, {.directory = dir.path(), .fold_pool = &pool});
  for (Version version = 1; version <= 2; ++version) REQUIRE(chain.Add(store, version).ok());
  const auto payload = store.RouteFrom(2, kNewest, kFull, payload::CodecLevel::kFast).steps.at(0);
  const auto file = store.OpenFile(*payload);
  REQUIRE(file.ok());
  store.Discard();
  Bytes bytes(payload->total_bytes());
  REQUIRE(os::ReadAt(file->get(), 0, bytes, "delta").ok());
  CHECK(std::equal(bytes.begin(), bytes.end(), payload->bytes().begin(), payload->bytes().end()));
  CHECK_THAT(os::WriteAll(file->get(), 0, bytes, "delta"), FailsWith(ErrorCode::kIo, "write delta at byte 0"));
  CHECK_THAT(store.OpenFile(*payload), FailsWith(ErrorCode::kState, " has no file"));

  for (Version version = 1; version <= 2; ++version) REQUIRE(chain.Add(store, version).ok());
  const DeltaRoute fold = store.RouteFrom(1, kNewest, kFull, payload::CodecLevel::kFast);
  REQUIRE(fold.folded);
  CHECK_THAT(store.OpenFile(*fold.steps.at(0)), FailsWith(ErrorCode::kState, " has no file"));
  DeltaStore heap(chain.layout, {.fold_pool = &pool});
  REQUIRE(chain.Add(heap, 1).ok());
  CHECK_THAT(heap.OpenFile(*heap.RouteFrom(1, kNewest, kFull, payload::CodecLevel::kFast).steps.at(0)),
             FailsWith(ErrorCode::kState, " has no file"));
}

TEST_CASE("A version that does not follow the last one starts a new chain") {
  const Chain chain;
  DeltaStore store(chain.layout, {.fold_pool = &pool});
  REQUIRE(chain.Add(store, 1).ok());
  REQUIRE(chain.Add(store, 7).ok());
  CHECK(store.Retained().size() == 1);
}

}  // namespace
}  // namespace lockstep::store
