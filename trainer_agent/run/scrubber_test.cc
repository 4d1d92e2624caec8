#include "trainer_agent/run/scrubber.h"

#include <atomic>
#include <catch2/catch.hpp>

#include "common/base/eventually.h"
#include "trainer_agent/run/store_fixture.h"

namespace lockstep::run {
namespace {

// Zeros, whatever the version, and how often all of them were read.
struct ZeroBlocks : BlockReader {
  std::atomic<int> reads{0};

  Status UseBytes(Version, const ByteRange& range, const std::function<void(ByteView)>& use) override {
    use(Bytes(range.bytes));
    ++reads;
    return OkStatus();
  }
  Result<VersionFile> OpenFile(Version) override { return Status(ErrorCode::kState, "there is none"); }
};

TEST_CASE("A suspicion is looked at once for each version and peer, however often it is repeated") {
  const auto layout = LayoutOf(20000);
  const auto blocks = std::make_shared<ZeroBlocks>();
  const auto run = std::make_shared<ServedRun>("actor", RandomId<RunId>(), layout, blocks, StoreOptions{});
  VersionCatalog catalog;
  catalog.Open(run);
  const auto publish = [&](Version version) {
    auto manifest = std::make_shared<model::Manifest>(model::Manifest{{run->run(), version}, {}, {}});
    for (const BlockIndex block : layout->AllBlocks()) {
      manifest->block_hashes.push_back(model::BlockHash(Bytes(layout->block_range(block).bytes)));
    }
    REQUIRE(catalog.Publish(run, {manifest, 0}).ok());
  };
  publish(1);
  Scrubber scrubber(&catalog, std::chrono::milliseconds(0));
  const auto suspect_again_and_again = [&](const std::string& who) {
    for (int i = 0; i < 50; ++i) {
      scrubber.Suspect("actor", who);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  suspect_again_and_again("greedy");
  CHECK(Eventually([&] { return blocks->reads == 1; }));
  suspect_again_and_again("infer-0");
  CHECK(Eventually([&] { return blocks->reads == 2; }));
  publish(2);
  suspect_again_and_again("greedy");
  CHECK(Eventually([&] { return blocks->reads == 3; }));
  CHECK(run->Newest());
}

}  // namespace
}  // namespace lockstep::run
