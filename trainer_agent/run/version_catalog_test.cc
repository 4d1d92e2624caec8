#include "trainer_agent/run/version_catalog.h"

#include <atomic>
#include <catch2/catch.hpp>

#include "common/base/eventually.h"
#include "common/base/status_testing.h"
#include "trainer_agent/run/store_fixture.h"

namespace lockstep::run {
namespace {

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

// Serves a version of which nothing but its number is known.
void Publish(VersionCatalog& catalog, const std::shared_ptr<ServedRun>& run, Version version, int64_t unix_ns = 0) {
  REQUIRE(
      catalog.Publish(run, {std::make_shared<model::Manifest>(model::Manifest{{run->run(), version}, {}, {}}), unix_ns})
          .ok());
}

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
    Publish(catalog, run, version);
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
  CHECK_THAT(run->OpenSlot(0), FailsWith(ErrorCode::kState, "version 0 is no longer in memory"));
  VersionCatalog catalog;
  catalog.Open(run);
  for (const Version version : {1, 2}) {
    Publish(catalog, run, version);
  }
  blocks->in_memory = 2;
  CHECK(run->OpenSlot(0)->manifest->held.version == 2);
  CHECK(run->OpenSlot(2)->memory.data_offset == 102);
  CHECK_THAT(run->OpenSlot(1), FailsWith(ErrorCode::kState, "gone"));
  CHECK_THAT(run->OpenSlot(7), FailsWith(ErrorCode::kState, "version 7 is no longer in memory"));
  run->End();
  CHECK_THAT(run->OpenSlot(2), FailsWith(ErrorCode::kState, "version 2 is no longer in memory"));
}

TEST_CASE("No version follows one that was withdrawn, unless it was compared with none") {
  const Chain chain;
  auto run = std::make_shared<ServedRun>("m", chain.run, chain.layout, std::make_shared<FakeBlocks>(), StoreOptions{});
  VersionCatalog catalog;
  catalog.Open(run);
  Publish(catalog, run, 1);
  const auto base = run->Newest()->manifest;
  const ServedVersion second{std::make_shared<model::Manifest>(model::Manifest{{chain.run, 2}, {}, {}}), 0};
  CHECK(run->CheckBase(base.get()).ok());
  catalog.Retract(run, 1, {ErrorCode::kCorrupt, "bits were lost"});
  const FailsWith says_so(ErrorCode::kAborted, "model m: version 1, which it was compared with, was withdrawn");
  CHECK_THAT(run->CheckBase(base.get()), says_so);
  CHECK_THAT(catalog.Publish(run, second, base.get()), says_so);
  CHECK_THAT(run->RequireNewest(), FailsWith(ErrorCode::kCorrupt, "bits were lost"));
  CHECK(catalog.Publish(run, second).ok());
  CHECK_THAT(run->CheckBase(base.get()), says_so);
}

TEST_CASE("An update is another run or version than was seen") {
  const Chain chain;
  VersionCatalog catalog;
  CHECK_FALSE(catalog.UpdateSince("m", {}));
  auto run = std::make_shared<ServedRun>("m", chain.run, chain.layout, std::make_shared<FakeBlocks>(), StoreOptions{});
  catalog.Open(run);
  const auto opened = catalog.UpdateSince("m", {});
  REQUIRE(opened);
  CHECK(opened->newest == VersionRef{chain.run, 0});
  CHECK_FALSE(opened->version);
  CHECK_FALSE(catalog.UpdateSince("m", opened->newest));
  Publish(catalog, run, 1, 5);
  const auto published = catalog.UpdateSince("m", opened->newest);
  REQUIRE(published);
  CHECK(published->newest == VersionRef{chain.run, 1});
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
  Publish(catalog, run, 1, 5);
  CHECK(Eventually([&] { return mine == 2 && all == 2; }));
  watch.reset();
  Publish(catalog, run, 2, 6);
  CHECK(Eventually([&] { return all == 3; }));
  CHECK(mine == 2);
  CHECK(others == 0);
  CHECK_FALSE(catalog.closed());
  catalog.Close();
  CHECK(catalog.closed());
  CHECK(Eventually([&] { return others == 1 && all == 4; }));
}

}  // namespace
}  // namespace lockstep::run
