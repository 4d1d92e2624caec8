#include "trainer_agent/run/delta_store.h"

#include <catch2/catch.hpp>

#include "common/base/status_testing.h"
#include "common/os/file.h"
#include "common/os/temp_dir.h"
#include "trainer_agent/run/store_fixture.h"

namespace lockstep::run {
namespace {

constexpr uint64_t kFull = 1 << 20;
constexpr Version kNewest = DeltaStore::kNewest;

TEST_CASE("What is retained leads to the newest, step by step; unknown versions and dear ways go full") {
  const Chain chain;
  DeltaStore store(chain.layout, {});
  for (Version version = 1; version <= 3; ++version) REQUIRE(chain.Add(store, version).ok());
  CHECK(store.RouteFrom(3, kNewest, kFull).size() == 1);
  const DeltaStore::Chain steps = store.RouteFrom(1, kNewest, kFull);
  REQUIRE(steps.size() == 3);
  CHECK(steps == *store.ChainFrom(1, kNewest));
  const uint64_t bytes = 3 * steps[0]->payload()->header().data_bytes;
  CHECK(store.RouteFrom(1, kNewest, bytes + 1).size() == 3);
  CHECK(store.RouteFrom(1, kNewest, bytes).empty());
  CHECK(store.RouteFrom(9, kNewest, kFull).empty());
  CHECK_THAT(store.ChainFrom(0, kNewest),
             FailsWith(ErrorCode::kState, "the deltas from version 0 on are no longer retained"));
}

TEST_CASE("A route ends where it is to, also when a newer delta is retained already") {
  const Chain chain;
  DeltaStore store(chain.layout, {});
  for (Version version = 1; version <= 3; ++version) REQUIRE(chain.Add(store, version).ok());
  const DeltaStore::Chain steps = store.RouteFrom(1, 3, kFull);
  REQUIRE(steps.size() == 2);
  CHECK(steps[1]->payload()->target().version == 3);
  CHECK(store.RouteFrom(2, 3, kFull).size() == 1);
  CHECK(store.RouteFrom(3, 3, kFull).empty());
}

TEST_CASE("The budget evicts from the old end, unless a pull holds it, and then too in the end") {
  const Chain chain;
  constexpr uint64_t kPage = 4096;  // each of these deltas takes one
  DeltaStore store(chain.layout, {.retain_bytes = 3 * kPage});
  for (Version version = 1; version <= 5; ++version) REQUIRE(chain.Add(store, version).ok());
  CHECK(store.Retained().size() == 3);
  CHECK(store.RouteFrom(2, kNewest, kFull).empty());
  CHECK(store.MaxDeltaBytes() == 3 * kPage);
  auto pin = store.PinFrom(3);
  CHECK(store.MaxDeltaBytes() == chain.layout->data_bytes());
  for (Version version = 6; version <= 10; ++version) REQUIRE(chain.Add(store, version).ok());
  CHECK(store.Retained().size() == 8);
  for (Version version = 11; version <= 40; ++version) REQUIRE(chain.Add(store, version).ok());
  CHECK(store.Retained().size() == (2 * 3 * kPage + chain.layout->data_bytes()) / kPage);
  pin.reset();
  CHECK(store.Retained().size() == 3);
}

TEST_CASE("A restarted agent finds the chain that ends at its newest version, and nothing else") {
  const Chain chain;
  const os::TempDir dir;
  {
    DeltaStore store(chain.layout, {.directory = dir.path()});
    for (Version version = 1; version <= 4; ++version) REQUIRE(chain.Add(store, version).ok());
  }
  REQUIRE(os::WriteFileAtomic(dir.File("new"), "half a delta").ok());
  REQUIRE(os::WriteFileAtomic(dir.File("7-8.delta"), "rubbish").ok());
  {
    DeltaStore store(chain.layout, {.directory = dir.path()});
    store.Load(chain.Newest(5));
    CHECK(store.Retained().size() == 4);
    CHECK_THAT(os::ReadFile(dir.File("new")), FailsWith(ErrorCode::kNotFound, dir.File("new")));
    CHECK_THAT(os::ReadFile(dir.File("7-8.delta")), FailsWith(ErrorCode::kNotFound, dir.File("7-8.delta")));
    REQUIRE(chain.Add(store, 5).ok());
    CHECK(store.RouteFrom(1, kNewest, kFull).size() == 5);
  }
  DeltaStore other(chain.layout, {.directory = dir.path()});
  other.Load({.held = {RandomId<RunId>(), 6}, .block_hashes = {}, .digest = DigestOf(6)});
  CHECK(other.Retained().empty());
}

TEST_CASE("A restarted agent keeps no delta that leads to another digest than its newest version has") {
  const Chain chain;
  const os::TempDir dir;
  {
    DeltaStore store(chain.layout, {.directory = dir.path()});
    REQUIRE(chain.Add(store, 1).ok());
  }
  DeltaStore store(chain.layout, {.directory = dir.path()});
  store.Load({.held = {chain.run, 2}, .block_hashes = {}, .digest = DigestOf(3)});
  CHECK(store.Retained().empty());
}

TEST_CASE("A delta's file is opened for reading and outlives its name; deltas on the heap have none") {
  const Chain chain;
  const os::TempDir dir;
  DeltaStore store(chain.layout, {.directory = dir.path()});
  for (Version version = 1; version <= 2; ++version) REQUIRE(chain.Add(store, version).ok());
  const auto payload = store.RouteFrom(2, kNewest, kFull).at(0)->payload();
  const auto file = store.OpenFile(*payload);
  REQUIRE(file.ok());
  store.Discard();
  Bytes bytes(payload->total_bytes());
  REQUIRE(os::ReadAt(file->get(), 0, bytes, "delta").ok());
  CHECK(std::equal(bytes.begin(), bytes.end(), payload->bytes().begin(), payload->bytes().end()));
  CHECK_THAT(os::WriteAll(file->get(), 0, bytes, "delta"), FailsWith(ErrorCode::kIo, "write delta at byte 0"));
  CHECK_THAT(store.OpenFile(*payload), FailsWith(ErrorCode::kState, " has no file"));

  DeltaStore heap(chain.layout, {});
  REQUIRE(chain.Add(heap, 1).ok());
  CHECK_THAT(heap.OpenFile(*heap.RouteFrom(1, kNewest, kFull).at(0)->payload()),
             FailsWith(ErrorCode::kState, " has no file"));
}

TEST_CASE("A version that does not follow the last one starts a new chain") {
  const Chain chain;
  DeltaStore store(chain.layout, {});
  REQUIRE(chain.Add(store, 1).ok());
  REQUIRE(chain.Add(store, 7).ok());
  CHECK(store.Retained().size() == 1);
}

}  // namespace
}  // namespace lockstep::run
