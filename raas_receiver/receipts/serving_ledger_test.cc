// What a receiver remembers of who served what, over restarts and damage.
#include "raas_receiver/receipts/serving_ledger.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <thread>

#include "common/os/file.h"
#include "common/os/temp_dir.h"

namespace lockstep::receipts {
namespace {

v1::Receipt Of(uint64_t version) {
  v1::Receipt receipt;
  receipt.set_model("actor");
  receipt.set_version(version);
  receipt.set_manifest_digest(std::string(16, static_cast<char>(version)));
  return receipt;
}

std::vector<uint64_t> Versions(const std::vector<v1::Receipt>& receipts) {
  std::vector<uint64_t> versions;
  for (const v1::Receipt& receipt : receipts) versions.push_back(receipt.version());
  return versions;
}

using V = std::vector<uint64_t>;

TEST_CASE("Intervals of an engine follow one another, and the open one lasts until it was seen last") {
  ServingLedger ledger;
  ledger.Note("a", Of(1));
  ledger.Note("a", Of(1));
  ledger.Note("a", std::nullopt);
  ledger.Note("a", std::nullopt);
  ledger.Note("a", Of(2));
  ledger.Note("b", Of(1));
  const auto all = ledger.Find({});
  REQUIRE(Versions(all) == V{1, 2, 1});
  CHECK((all[0].ended() && !all[1].ended() && all[0].engine() == "a" && all[2].engine() == "b"));
  CHECK(all[0].from_unix_ns() <= all[0].to_unix_ns());
  CHECK(all[0].to_unix_ns() <= all[1].from_unix_ns());
  ledger.Note("a", Of(2));
  CHECK(ledger.Find({})[1].to_unix_ns() > all[1].to_unix_ns());
  CHECK(ledger.Open("a")->version() == 2);
  CHECK_FALSE(ledger.Open("c"));
}

TEST_CASE("An interval ends at its end, or where it was seen last") {
  ServingLedger ledger;
  ledger.Note("lost", Of(1));
  ledger.Note("ended", Of(1));
  const auto seen = ledger.Find({})[0].to_unix_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  ledger.Note("lost", std::nullopt);
  ledger.End("ended");
  ledger.End("ended");
  const auto all = ledger.Find({});
  CHECK((all[0].ended() && all[0].to_unix_ns() == seen));
  CHECK((all[1].ended() && all[1].to_unix_ns() > seen + 1'000'000));
}

TEST_CASE("Receipts are found by engine, version and time") {
  ServingLedger ledger;
  for (uint64_t version = 1; version <= 3; ++version) {
    ledger.Note("a", Of(version));
    ledger.Note("b", Of(version));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ledger.End("a");
    ledger.End("b");
  }
  v1::GetReceiptsRequest request;
  request.set_engine("b");
  CHECK(Versions(ledger.Find(request)) == V{1, 2, 3});
  const auto second = ledger.Find(request)[1];
  request.set_version(3);
  CHECK(Versions(ledger.Find(request)) == V{3});
  request.set_version(0);
  request.set_from_unix_ns(second.from_unix_ns() + 1);
  CHECK(Versions(ledger.Find(request)) == V{2, 3});
  request.set_to_unix_ns(second.from_unix_ns() + 1);
  CHECK(Versions(ledger.Find(request)) == V{2});
}

TEST_CASE("A receiver that starts again knows what was, and ends what it cannot know") {
  const os::TempDir directory;
  const std::string path = directory.path() + "/served/actor";
  {
    ServingLedger ledger(path, "actor");
    ledger.Note("a", Of(1));
    ledger.Note("a", Of(2));
  }
  {
    ServingLedger ledger(path, "actor");
    const auto all = ledger.Find({});
    REQUIRE(Versions(all) == V{1, 2});
    CHECK((all[1].ended() && all[1].to_unix_ns() >= all[1].from_unix_ns()));
    CHECK_FALSE(ledger.Open("a"));
    ledger.Note("a", Of(2));  // the same version, and another interval: nobody looked in between
    CHECK(Versions(ledger.Find({})) == V{1, 2, 2});
  }
  CHECK(Versions(ServingLedger(path, "actor").Find({})) == V{1, 2, 2});
}

TEST_CASE("Records of another model or receiver, and what is no record, are not answered") {
  const os::TempDir directory;
  const std::string path = directory.path() + "/actor";
  {
    ServingLedger ledger(path, "actor");
    ledger.Note("a", Of(1));
  }
  CHECK(ServingLedger(path, "critic").Find({}).empty());
  for (const char* more : {"zeros", "a flipped bit"}) {
    {
      ServingLedger ledger(path, "actor");
      ledger.Note("a", Of(1));
      ledger.End("a");
    }
    std::string text = *os::ReadFile(path);
    if (more[0] == 'z') text += std::string(64, '\0');
    if (more[0] == 'a') text[text.size() - 5] ^= 1;
    REQUIRE(os::WriteFileAtomic(path, std::string_view(text)).ok());
    for (const v1::Receipt& receipt : ServingLedger(path, "actor").Find({})) {
      CHECK((receipt.model() == "actor" && receipt.version() == 1));
    }
  }
}

TEST_CASE("Of a file that was cut anywhere the whole records are read, and what follows is written behind them") {
  const os::TempDir directory;
  const std::string path = directory.path() + "/actor";
  {
    ServingLedger ledger(path, "actor");
    ledger.Note("a", Of(1));
    ledger.Note("a", std::nullopt);
    ledger.Note("a", Of(2));
  }
  const std::string whole = *os::ReadFile(path);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    REQUIRE(os::WriteFileAtomic(path, std::string_view(whole).substr(0, bytes)).ok());
    const size_t kept = ServingLedger(path, "actor").Find({}).size();
    CHECK(kept <= 2);
    {
      ServingLedger ledger(path, "actor");
      ledger.Note("b", Of(9));
    }
    CHECK(ServingLedger(path, "actor").Find({}).size() == kept + 1);
  }
}

TEST_CASE("A ledger that cannot be written works in memory") {
  ServingLedger ledger("/proc/no/such/place", "actor");
  ledger.Note("a", Of(1));
  CHECK(Versions(ledger.Find({})) == V{1});
}

}  // namespace
}  // namespace lockstep::receipts
