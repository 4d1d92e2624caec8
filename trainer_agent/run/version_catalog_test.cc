#include "trainer_agent/run/version_catalog.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "common/base/status_testing.h"
#include "common/os/file.h"
#include "trainer_agent/run/store_fixture.h"

namespace lockstep::run {
namespace {

// Serves a version of which nothing but its number is known.
void Publish(VersionCatalog& catalog, const std::shared_ptr<ServedRun>& run, Version version, int64_t unix_ns = 0) {
  REQUIRE(
      catalog.Publish(run, {std::make_shared<model::Manifest>(model::Manifest{{run->run(), version}, {}, {}}), unix_ns})
          .ok());
}

// A run whose versions lie in a buffer, filled with their numbers.
struct Filled {
  std::shared_ptr<DoubleBuffer> buffer = BufferOf(*LayoutOf(20000));
  std::shared_ptr<ServedRun> run = std::make_shared<ServedRun>(buffer, StoreOptions{});
  VersionCatalog catalog;

  Filled() { catalog.Open(run); }
  void Add(Version version) {
    Write(*buffer, version, [&](std::byte* data) { std::memset(data, static_cast<int>(version), 40000); });
    Publish(catalog, run, version);
  }
};

TEST_CASE("A block comes from the wanted version, or from the newest when that is gone") {
  Filled filled;
  Version used = 0;
  const auto use = [&](Version wanted, bool exact) {
    return filled.run->UseBlocks(wanted, exact, 0, 1, [&](const model::Manifest& manifest, ByteView bytes) {
      used = manifest.held.version;
      CHECK(bytes[0] == static_cast<std::byte>(used));
    });
  };
  CHECK_THAT(use(1, false), FailsWith(ErrorCode::kState, "model actor: no version is committed yet"));
  for (const Version version : {1, 2}) filled.Add(version);
  CHECK(use(1, false).ok());
  CHECK(used == 1);
  Forget(*filled.buffer, 1);
  CHECK(use(1, false).ok());
  CHECK(used == 2);
  CHECK_THAT(use(1, true), FailsWith(ErrorCode::kState, "version 1 is no longer in memory"));
  CHECK(use(2, true).ok());
}

TEST_CASE("The memory of a version comes with the manifest that says what is in it") {
  Filled filled;
  ServedRun& run = *filled.run;
  CHECK_THAT(run.OpenSlot(0), FailsWith(ErrorCode::kState, "version 0 is no longer in memory"));
  for (const Version version : {1, 2}) filled.Add(version);
  Forget(*filled.buffer, 1);
  CHECK(run.OpenSlot(0)->manifest->held.version == 2);
  const auto slot = run.OpenSlot(2);
  std::byte byte{};
  REQUIRE(os::ReadAt(slot->memory.file.get(), slot->memory.data_offset + 39999, {&byte, 1}, "slot").ok());
  CHECK(byte == std::byte{2});
  CHECK_THAT(run.OpenSlot(1), FailsWith(ErrorCode::kState, "version 1 is no longer in memory"));
  CHECK_THAT(run.OpenSlot(7), FailsWith(ErrorCode::kState, "version 7 is no longer in memory"));
  run.End();
  CHECK_THAT(run.OpenSlot(2), FailsWith(ErrorCode::kState, "version 2 is no longer in memory"));
}

TEST_CASE("No version follows one that was withdrawn, unless it was compared with none") {
  const auto run = std::make_shared<ServedRun>(BufferOf(*LayoutOf(20000), "m"), StoreOptions{});
  VersionCatalog catalog;
  catalog.Open(run);
  Publish(catalog, run, 1);
  const auto base = run->Newest()->manifest;
  const ServedVersion second{std::make_shared<model::Manifest>(model::Manifest{{run->run(), 2}, {}, {}}), 0};
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
  VersionCatalog catalog;
  CHECK_FALSE(catalog.UpdateSince("m", {}));
  const auto run = std::make_shared<ServedRun>(BufferOf(*LayoutOf(20000), "m"), StoreOptions{});
  catalog.Open(run);
  const auto opened = catalog.UpdateSince("m", {});
  REQUIRE(opened);
  CHECK(opened->newest == VersionRef{run->run(), 0});
  CHECK_FALSE(opened->version);
  CHECK_FALSE(catalog.UpdateSince("m", opened->newest));
  Publish(catalog, run, 1, 5);
  const auto published = catalog.UpdateSince("m", opened->newest);
  REQUIRE(published);
  CHECK(published->newest == VersionRef{run->run(), 1});
  CHECK(published->version->committed_unix_ns == 5);
  CHECK_FALSE(catalog.UpdateSince("m", published->newest));
  CHECK_FALSE(catalog.UpdateSince("other", {}));
}

TEST_CASE("Who waits for a version is woken once, by whatever may be one, and at the end") {
  VersionCatalog catalog;
  const auto reader = std::make_shared<int>(0);
  const auto wake = [count = reader.get()] { ++*count; };
  CHECK(catalog.WakeOnUpdate("m", {}, reader, wake));
  const auto run = std::make_shared<ServedRun>(BufferOf(*LayoutOf(20000), "m"), StoreOptions{});
  catalog.Open(run);
  CHECK(*reader == 1);
  CHECK_FALSE(catalog.WakeOnUpdate("m", {}, reader, wake));  // there is an update now
  const VersionRef opened = catalog.UpdateSince("m", {})->newest;
  CHECK(catalog.WakeOnUpdate("m", opened, reader, wake));
  Publish(catalog, run, 1, 5);
  CHECK(*reader == 2);
  Publish(catalog, run, 2, 6);
  CHECK(*reader == 2);
  CHECK(catalog.WakeOnUpdate("m", {run->run(), 2}, reader, wake));
  catalog.Retract(run, 2, {ErrorCode::kCorrupt, "bits were lost"});
  CHECK(*reader == 3);
  CHECK(catalog.WakeOnUpdate("other", {}, reader, wake));
  CHECK_FALSE(catalog.closed());
  catalog.Close();
  CHECK(catalog.closed());
  CHECK(*reader == 4);
  CHECK_FALSE(catalog.WakeOnUpdate("m", opened, reader, wake));
}

TEST_CASE("A version's label is known, and so is the newest version with a label, as far as labels are remembered") {
  VersionCatalog catalog;
  const auto run = std::make_shared<ServedRun>(BufferOf(*LayoutOf(20000), "m"), StoreOptions{});
  catalog.Open(run);
  const auto publish = [&](Version version, const std::string& label) {
    const auto manifest = std::make_shared<model::Manifest>(model::Manifest{{run->run(), version}, {}, {}});
    REQUIRE(catalog.Publish(run, {manifest, 0, label}).ok());
  };
  publish(1, "warm");
  publish(2, "");
  publish(3, "warm");
  CHECK(run->LabelOf(1) == "warm");
  CHECK(run->LabelOf(2).empty());
  CHECK(run->NewestLabelled("warm") == 3);
  CHECK(run->NewestLabelled("cold") == 0);
  for (Version version = 4; version < 4 + ServedRun::kRememberedLabels; ++version) publish(version, "step");
  CHECK(run->LabelOf(3).empty());
  CHECK(run->NewestLabelled("warm") == 0);
  CHECK(run->LabelOf(4) == "step");
}

}  // namespace
}  // namespace lockstep::run
