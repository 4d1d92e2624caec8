#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <random>
#include <thread>
#include <utility>

#include "common/base/hash.h"
#include "common/base/status_testing.h"
#include "common/os/file.h"
#include "common/os/temp_dir.h"
#include "common/payload/test_level.h"
#include "trainer_agent/store/delta_store.h"
#include "trainer_agent/store/level_choice.h"
#include "trainer_agent/store/version_catalog.h"

namespace lockstep::store {
namespace {

std::shared_ptr<const model::ModelLayout> Layout() {
  return *model::ModelLayout::Create({{"w", model::DType::kU16, {20000}, 0}}, 4096);
}

ManifestDigest DigestOf(Version version) {
  ManifestDigest digest;
  digest.bytes[0] = static_cast<uint8_t>(version);
  return digest;
}

struct Chain {
  std::shared_ptr<const model::ModelLayout> layout = Layout();
  RunId run = RandomId<RunId>();

  // Version `base` to the next: three elements of the first block change by 1.
  Status Add(DeltaStore& store, Version base) const {
    return Add(store, base, {.positions = {0, 2, 4}, .steps = {1, 1, 1}}, payload::CodecLevel::kFast);
  }
  Status Add(DeltaStore& store, Version base, const payload::Changes& changes, payload::CodecLevel level) const {
    std::vector<payload::DeltaBlock> blocks(1);
    blocks[0] = {
        .codec = payload::Codec::kSparse, .changes = static_cast<uint32_t>(changes.size()), .target_hash = base + 1};
    payload::EncodeSparse(changes, 2, level, blocks[0].data);
    blocks[0].data_hash = Hash64(blocks[0].data);
    return store
        .Add({.run = run,
              .base = base,
              .target = base + 1,
              .base_digest = DigestOf(base),
              .target_digest = DigestOf(base + 1)},
             level, {&blocks[0]})
        .status();
  }
  model::Manifest Newest(Version version) const {
    return {.held = {run, version}, .block_hashes = {}, .digest = DigestOf(version)};
  }
};

// Whether `condition` comes true within a minute, which no loaded machine exceeds.
template <typename Condition>
bool Eventually(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

constexpr uint64_t kFull = 1 << 20;

WorkerPool pool(2);

TEST_CASE("One step behind is a delta, several are folded, unknown ones and dear ones go full") {
  const Chain chain;
  DeltaStore store(chain.layout, {.fold_pool = &pool});
  for (Version version = 1; version <= 3; ++version) REQUIRE(chain.Add(store, version).ok());
  const DeltaRoute delta = store.RouteFrom(3, kFull, payload::CodecLevel::kFast);
  REQUIRE(delta.steps.size() == 1);
  CHECK_FALSE(delta.folded);
  const DeltaRoute folded = store.RouteFrom(1, kFull, payload::CodecLevel::kFast);
  REQUIRE(folded.steps.size() == 1);
  CHECK(folded.folded);
  CHECK(folded.steps[0]->header().steps_folded == 3);
  CHECK(store.RouteFrom(1, kFull, payload::CodecLevel::kFast).steps[0] == folded.steps[0]);
  CHECK(store.RouteFrom(9, kFull, payload::CodecLevel::kFast).steps.empty());
  CHECK(store.RouteFrom(1, 5, payload::CodecLevel::kFast).steps.empty());
  CHECK((*store.ChainFrom(1)).size() == 3);
  CHECK_THAT(store.ChainFrom(0), FailsWith(ErrorCode::kState, "the deltas from version 0 on are no longer retained"));
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
    receivers.emplace_back([&] { route = store.RouteFrom(4, kFull, payload::CodecLevel::kFast); });
  }
  for (std::thread& receiver : receivers) receiver.join();
  CHECK(routes[0].folded);
  for (const DeltaRoute& route : routes) CHECK(route.steps == routes[0].steps);
  CHECK(store.RouteFrom(4, kFull, payload::CodecLevel::kFast).steps == routes[0].steps);
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
  CHECK(store.RouteFrom(500, 1 << 30, payload::CodecLevel::kFast).folded);
  const DeltaRoute route = store.RouteFrom(1, 1 << 30, payload::CodecLevel::kFast);
  CHECK_FALSE(route.folded);
  CHECK(route.steps.size() == 1000);
}

TEST_CASE("A delta is served at any level above its own, each form made once and in fewer bytes") {
  const Chain chain;
  DeltaStore store(chain.layout, {.fold_pool = &pool});
  REQUIRE(chain.Add(store, 1, payload::RepetitiveChanges(500), payload::CodecLevel::kFast).ok());
  uint64_t bytes = kFull;
  for (const payload::CodecLevel level : {payload::CodecLevel::kFast, payload::CodecLevel::kCompact, payload::kHard}) {
    const DeltaRoute route = store.RouteFrom(1, kFull, level);
    REQUIRE(route.steps.size() == 1);
    CHECK(route.level == level);
    CHECK(route.data_bytes() < bytes);
    CHECK(store.RouteFrom(1, kFull, level).steps[0] == route.steps[0]);
    bytes = route.data_bytes();
  }
  CHECK(store.Retained().size() == 3);
}

TEST_CASE("A delta made at a level is served at it to whoever would do with less, and raised to more") {
  const Chain chain;
  DeltaStore store(chain.layout, {.fold_pool = &pool});
  REQUIRE(chain.Add(store, 1, payload::RepetitiveChanges(500), payload::CodecLevel::kCompact).ok());
  CHECK(store.RouteFrom(1, kFull, payload::CodecLevel::kFast).level == payload::CodecLevel::kCompact);
  CHECK(store.RouteFrom(1, kFull, payload::CodecLevel::kFast).steps ==
        store.RouteFrom(1, kFull, payload::CodecLevel::kCompact).steps);
  CHECK(store.RouteFrom(1, kFull, payload::kHard).level == payload::kHard);
  CHECK(store.RouteFrom(1, kFull, payload::kHard).data_bytes() <
        store.RouteFrom(1, kFull, payload::CodecLevel::kFast).data_bytes());
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
  const payload::DeltaChain made = *store.ChainFrom(1);
  const DeltaRoute fast = store.RouteFrom(1, kFull, payload::CodecLevel::kFast);
  CHECK_FALSE(fast.folded);
  CHECK(fast.level == payload::CodecLevel::kFast);
  CHECK(fast.steps == made);
  const DeltaRoute raised = store.RouteFrom(1, kFull, payload::CodecLevel::kCompact);
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
  CHECK(store.RouteFrom(2, kFull, payload::CodecLevel::kFast).steps.empty());
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
    CHECK(store.RouteFrom(1, kFull, payload::CodecLevel::kFast).folded);
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
  const auto payload = store.RouteFrom(2, kFull, payload::CodecLevel::kFast).steps.at(0);
  const auto file = store.OpenFile(*payload);
  REQUIRE(file.ok());
  store.Discard();
  Bytes bytes(payload->total_bytes());
  REQUIRE(os::ReadAt(file->get(), 0, bytes, "delta").ok());
  CHECK(std::equal(bytes.begin(), bytes.end(), payload->bytes().begin(), payload->bytes().end()));
  CHECK_THAT(os::WriteAll(file->get(), 0, bytes, "delta"), FailsWith(ErrorCode::kIo, "write delta at byte 0"));
  CHECK_THAT(store.OpenFile(*payload), FailsWith(ErrorCode::kState, " has no file"));

  for (Version version = 1; version <= 2; ++version) REQUIRE(chain.Add(store, version).ok());
  const DeltaRoute fold = store.RouteFrom(1, kFull, payload::CodecLevel::kFast);
  REQUIRE(fold.folded);
  CHECK_THAT(store.OpenFile(*fold.steps.at(0)), FailsWith(ErrorCode::kState, " has no file"));
  DeltaStore heap(chain.layout, {.fold_pool = &pool});
  REQUIRE(chain.Add(heap, 1).ok());
  CHECK_THAT(heap.OpenFile(*heap.RouteFrom(1, kFull, payload::CodecLevel::kFast).steps.at(0)),
             FailsWith(ErrorCode::kState, " has no file"));
}

TEST_CASE("A version that does not follow the last one starts a new chain") {
  const Chain chain;
  DeltaStore store(chain.layout, {.fold_pool = &pool});
  REQUIRE(chain.Add(store, 1).ok());
  REQUIRE(chain.Add(store, 7).ok());
  CHECK(store.Retained().size() == 1);
}

struct FakeBlocks : BlockReader {
  Version in_memory = 0;
  Status UseBytes(Version version, const ByteRange&, const std::function<void(ByteView)>& use) override {
    if (version != in_memory) return {ErrorCode::kState, "gone"};
    const auto byte = static_cast<std::byte>(version);
    use({&byte, 1});
    return OkStatus();
  }
  Result<VersionFile> OpenFile(Version version) override {
    if (version != in_memory) return Status(ErrorCode::kState, "gone");
    return VersionFile{{}, 100 + version};
  }
};

TEST_CASE("A block comes from the wanted version, or from the newest when that is gone") {
  const Chain chain;
  auto blocks = std::make_shared<FakeBlocks>();
  auto run = std::make_shared<ServedRun>("m", chain.run, chain.layout, blocks, StoreOptions{});
  VersionCatalog catalog;
  catalog.Open(run);
  Version used = 0;
  const auto use = [&](Version wanted, bool exact) {
    return run->UseBlocks(wanted, exact, 0, 1, [&](const model::Manifest& manifest, ByteView bytes) {
      used = manifest.held.version;
      CHECK(bytes[0] == static_cast<std::byte>(used));
    });
  };
  CHECK_THAT(use(1, false), FailsWith(ErrorCode::kState, "model m: no version is committed yet"));
  for (const Version version : {1, 2}) {
    catalog.Publish(run, {std::make_shared<model::Manifest>(
                              model::Manifest{{chain.run, version}, std::vector<uint64_t>(10, version), {}}),
                          0});
  }
  blocks->in_memory = 1;
  CHECK(use(1, false).ok());
  CHECK(used == 1);
  blocks->in_memory = 2;
  CHECK(use(1, false).ok());
  CHECK(used == 2);
  CHECK_THAT(use(1, true), FailsWith(ErrorCode::kState, "gone"));
  CHECK(use(2, true).ok());
}

TEST_CASE("The memory of a version comes with the manifest that says what is in it") {
  const Chain chain;
  auto blocks = std::make_shared<FakeBlocks>();
  auto run = std::make_shared<ServedRun>("m", chain.run, chain.layout, blocks, StoreOptions{});
  CHECK_THAT(run->OpenHalf(0), FailsWith(ErrorCode::kState, "version 0 is no longer in memory"));
  VersionCatalog catalog;
  catalog.Open(run);
  for (const Version version : {1, 2}) {
    catalog.Publish(run, {std::make_shared<model::Manifest>(model::Manifest{{chain.run, version}, {}, {}}), 0});
  }
  blocks->in_memory = 2;
  CHECK(run->OpenHalf(0)->manifest->held.version == 2);
  CHECK(run->OpenHalf(2)->memory.data_offset == 102);
  CHECK_THAT(run->OpenHalf(1), FailsWith(ErrorCode::kState, "gone"));
  CHECK_THAT(run->OpenHalf(7), FailsWith(ErrorCode::kState, "version 7 is no longer in memory"));
  run->End();
  CHECK_THAT(run->OpenHalf(2), FailsWith(ErrorCode::kState, "version 2 is no longer in memory"));
}

TEST_CASE("An update is another run or version than was seen") {
  const Chain chain;
  VersionCatalog catalog;
  CHECK_FALSE(catalog.UpdateSince("m", {}));
  auto run = std::make_shared<ServedRun>("m", chain.run, chain.layout, std::make_shared<FakeBlocks>(), StoreOptions{});
  catalog.Open(run);
  const auto opened = catalog.UpdateSince("m", {});
  REQUIRE(opened);
  CHECK(opened->newest == Held{chain.run, 0});
  CHECK_FALSE(opened->version);
  CHECK_FALSE(catalog.UpdateSince("m", opened->newest));
  catalog.Publish(run, {std::make_shared<model::Manifest>(model::Manifest{{chain.run, 1}, {}, {}}), 5});
  const auto published = catalog.UpdateSince("m", opened->newest);
  REQUIRE(published);
  CHECK(published->newest == Held{chain.run, 1});
  CHECK(published->version->committed_unix_ns == 5);
  CHECK_FALSE(catalog.UpdateSince("m", published->newest));
  CHECK_FALSE(catalog.UpdateSince("other", {}));
}

TEST_CASE("A watch is called for its model and at the end, and never once it is gone") {
  const Chain chain;
  std::atomic<int> mine{0};
  std::atomic<int> others{0};
  std::atomic<int> all{0};
  VersionCatalog catalog;
  auto watch = std::make_unique<VersionCatalog::Watch>(&catalog, "m", [&] { ++mine; });
  const VersionCatalog::Watch other(&catalog, "other", [&] { ++others; });
  const VersionCatalog::Watch later(&catalog, "m", [&] { ++all; });
  auto run = std::make_shared<ServedRun>("m", chain.run, chain.layout, std::make_shared<FakeBlocks>(), StoreOptions{});
  catalog.Open(run);
  CHECK(Eventually([&] { return mine == 1 && all == 1; }));
  catalog.Publish(run, {std::make_shared<model::Manifest>(model::Manifest{{chain.run, 1}, {}, {}}), 5});
  CHECK(Eventually([&] { return mine == 2 && all == 2; }));
  watch.reset();
  catalog.Publish(run, {std::make_shared<model::Manifest>(model::Manifest{{chain.run, 2}, {}, {}}), 6});
  CHECK(Eventually([&] { return all == 3; }));
  CHECK(mine == 2);
  CHECK(others == 0);
  CHECK_FALSE(catalog.closed());
  catalog.Close();
  CHECK(catalog.closed());
  CHECK(Eventually([&] { return others == 1 && all == 4; }));
}

TEST_CASE("Of the first two, the level is compact below a link's rate that rises with the density and levels off") {
  const auto levels = payload::CodecLevel::All().first(2);
  for (const auto& [density, border] : std::vector<std::pair<double, uint64_t>>{{0.0001, 1'000'000},
                                                                                {0.002, 20'000'000},
                                                                                {0.01, 100'000'000},
                                                                                {0.02, 200'000'000},
                                                                                {0.022, 220'000'000},
                                                                                {0.5, 220'000'000},
                                                                                {1, 220'000'000},
                                                                                {0, 100'000'000}}) {
    INFO(density);
    CHECK(ChooseLevel(border - 1, density, levels) == payload::CodecLevel::kCompact);
    CHECK(ChooseLevel(border, density, levels) == payload::CodecLevel::kFast);
    CHECK(ChooseLevel(1, density, levels) == payload::CodecLevel::kCompact);
    CHECK(ChooseLevel(10'000'000'000, density, levels) == payload::CodecLevel::kFast);
  }
}

TEST_CASE(
    "The slower the link the higher the level, from the first, which is for what nothing is known of, to the last") {
  const auto levels = payload::CodecLevel::All();
  CHECK(ChooseLevel(0, 0.01) == levels.front());
  payload::CodecLevel level = levels.back();
  for (uint64_t rate = 1'000; rate < 10'000'000'000; rate += rate / 20) {
    const payload::CodecLevel before = std::exchange(level, ChooseLevel(rate, 0.01));
    CHECK(level <= before);
    if (rate == 1'000) CHECK(level == levels.back());
  }
  CHECK(level == levels.front());
}

TEST_CASE("Of any number of levels the one is chosen that brings a delta soonest") {
  const payload::CodecLevel levels[] = {payload::CodecLevel::kFast, payload::CodecLevel::kCompact, payload::kHard};
  CHECK(ChooseLevel(0, 0.01, levels) == payload::CodecLevel::kFast);
  CHECK(ChooseLevel(1'000'000, 0.01, levels) == payload::kHard);
  CHECK(ChooseLevel(50'000'000, 0.01, levels) == payload::CodecLevel::kCompact);
  CHECK(ChooseLevel(1'000'000'000, 0.01, levels) == payload::CodecLevel::kFast);
}

}  // namespace
}  // namespace lockstep::store
