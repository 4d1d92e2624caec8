#include "trainer_agent/run/scrubber.h"

#include <catch2/catch.hpp>

#include "common/base/eventually.h"
#include "trainer_agent/run/store_fixture.h"

namespace lockstep::run {
namespace {

// A run of zeros, whose newest version a test may damage.
struct Zeros {
  std::shared_ptr<DoubleBuffer> buffer;
  std::shared_ptr<ServedRun> run;
  VersionCatalog* catalog;

  Zeros(VersionCatalog* catalog, const std::string& model)
      : buffer(BufferOf(*LayoutOf(20000), model)),
        run(std::make_shared<ServedRun>(buffer, StoreOptions{})),
        catalog(catalog) {
    catalog->Open(run);
  }
  void Publish(Version version) {
    Write(*buffer, version, [](std::byte* data) { data[0] = std::byte{0}; });
    REQUIRE(catalog->Publish(run, {ManifestOf(*buffer, version), 0}).ok());
  }
  void Damage(Version version) { MemoryOf(*buffer, version)[0] = std::byte{1}; }
};

TEST_CASE("A suspicion is looked at once for each version and peer, however often it is repeated") {
  VersionCatalog catalog;
  Zeros actor(&catalog, "actor");
  Zeros later(&catalog, "later");  // the scrubber looks at it after "actor"
  Version looks = 0;
  Scrubber scrubber(&catalog, std::chrono::milliseconds(0));
  // Returns once the scrubber has looked at what was suspected before.
  const auto looked = [&] {
    later.Publish(++looks);
    later.Damage(looks);
    scrubber.Suspect("later", "");
    REQUIRE(Eventually([&] { return !later.run->Newest(); }));
  };
  actor.Publish(1);
  scrubber.Suspect("actor", "greedy");
  looked();
  CHECK(actor.run->Newest());
  actor.Damage(1);
  scrubber.Suspect("actor", "greedy");
  looked();
  CHECK(actor.run->Newest());
  scrubber.Suspect("actor", "infer-0");
  looked();
  CHECK_FALSE(actor.run->Newest());
  actor.Publish(2);
  actor.Damage(2);
  scrubber.Suspect("actor", "greedy");
  looked();
  CHECK_FALSE(actor.run->Newest());
}

}  // namespace
}  // namespace lockstep::run
