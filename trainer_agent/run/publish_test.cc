// Versions: what ranks write, and what is served of it.
#include <latch>
#include <map>

#include "common/base/status_testing.h"
#include "trainer_agent/run/publish_fixture.h"

namespace lockstep::run {
namespace {

TEST_CASE("Published versions are served with their bytes, hashes and deltas") {
  Host host;
  const auto rank = host.Connect();
  host.Publish(*rank, 1, 1);
  host.Publish(*rank, 5, 2);
  const ServedVersion served = host.Await(5);
  CHECK(FirstByte(host.run(), 5) == std::byte{2});
  CHECK(served.manifest->block_hashes.size() == 30);
  const DeltaStore::Chain steps = host.run().deltas().RouteFrom(1, DeltaStore::kNewest, 120000);
  REQUIRE(steps.size() == 1);
  CHECK(steps[0]->payload()->header().target_digest == served.manifest->digest);
  CHECK(steps[0]->payload()->header().changed_elements == 60000);
}

TEST_CASE("A served version leaves its spans, each inside the one it is part of, and one that was aborted none") {
  Host host;
  const auto rank = host.Connect();
  host.Publish(*rank, 1, 0x11);
  REQUIRE(rank->Begin(2).ok());
  REQUIRE(rank->Abort("on purpose").ok());
  std::byte* const data = Begin(*rank, 3);
  Write(*rank, data, {0, 4096}, 0x33);
  ReportUnchanged(*rank, {4096, 115904});
  REQUIRE(rank->Commit().ok());
  host.Await(3);

  CHECK(host.timeline().Select("actor", 2).empty());
  std::map<std::string_view, telemetry::Span> first, third;
  for (const telemetry::Span& span : host.timeline().Select("actor", 1)) first[span.name] = span;
  for (const telemetry::Span& span : host.timeline().Select("actor", 3)) third[span.name] = span;
  REQUIRE(first.size() == 2);  // nothing to compare it with: no delta
  CHECK(first.at("export").bytes == 120000);
  CHECK(first.at("diff").bytes == 120000);
  REQUIRE(third.size() == 4);
  CHECK(third.at("diff").bytes == 4096);  // the only block that was read
  CHECK(third.at("encode").bytes == host.run().deltas().Retained().back()->header().data_bytes);
  CHECK(third.at("store").bytes == third.at("encode").bytes);
  CHECK(third.at("export").begin_unix_ns <= third.at("diff").begin_unix_ns);
  CHECK(third.at("diff").begin_unix_ns <= third.at("encode").begin_unix_ns);
  CHECK(third.at("encode").begin_unix_ns <= third.at("encode").end_unix_ns);
  CHECK(third.at("encode").end_unix_ns <= third.at("diff").end_unix_ns);
  CHECK(third.at("diff").end_unix_ns <= third.at("store").begin_unix_ns + 1'000'000);
}

TEST_CASE("A version has the label that its ranks give it, the same one as often as they like") {
  Host host;
  const auto zero = host.Connect(0, 2);
  const auto one = host.Connect(1, 2);
  for (const auto& [version, label] : std::map<Version, std::string>{{1, "0"}, {2, "7"}, {3, "0"}, {4, ""}}) {
    Write(*zero, Begin(*zero, version), {0, 80000}, 1);
    Write(*one, Begin(*one, version), {80000, 40000}, 1);
    REQUIRE(one->SetLabel(label).ok());
    REQUIRE(zero->Commit().ok());
    REQUIRE(one->Commit().ok());
    CHECK(host.Await(version).label == label);
  }
  CHECK(host.run().NewestLabelled("0") == 3);
  CHECK(host.run().LabelOf(2) == "7");
  CHECK(host.run().NewestLabelled("8") == 0);
}

TEST_CASE("Ranks that label a version differently have it aborted, and learn which rank says what") {
  Host host;
  const auto zero = host.Connect(0, 2);
  const auto one = host.Connect(1, 2);
  Write(*zero, Begin(*zero, 1), {0, 80000}, 1);
  Write(*one, Begin(*one, 1), {80000, 40000}, 1);
  REQUIRE(zero->SetLabel("3").ok());
  REQUIRE(one->SetLabel("4").ok());
  REQUIRE(zero->Commit().ok());
  CHECK_THAT(one->Commit(), FailsWith(ErrorCode::kBadData, "rank 1 labels version 1 \"4\", and rank 0 \"3\""));
  PublishPart(*zero, 2, {0, 80000});
  PublishPart(*one, 2, {80000, 40000});
  CHECK(host.Await(2).label.empty());
}

TEST_CASE("A label is short UTF-8 text without control characters") {
  Host host;
  const auto rank = host.Connect();
  Begin(*rank, 1);
  CHECK(rank->SetLabel("sch\xc3\xb6n " + std::string(57, 'x')).ok());
  for (const std::string& bad :
       {std::string(65, 'x'), std::string("a\nb"), std::string("a\0b", 3), std::string("\xff")}) {
    CHECK_THAT(rank->SetLabel(bad), FailsWith(ErrorCode::kBadData, "UTF-8 of at most 64 bytes"));
  }
}

TEST_CASE("Versions are published while watchers are still being notified of an earlier one") {
  Host host;
  std::latch told(1);
  const auto rank = host.Connect();
  const auto reader = std::make_shared<int>(0);
  REQUIRE(host.catalog().WakeOnUpdate("actor", {host.run().run(), 0}, reader, [&] { told.wait(); }));
  for (Version version = 1; version <= 3; ++version) host.Publish(*rank, version, static_cast<int>(version));
  told.count_down();
}

TEST_CASE("A version commits when all of its ranks have, and ranks may run one version ahead") {
  Host host;
  const auto zero = host.Connect(0, 2);
  const auto one = host.Connect(1, 2);
  CHECK(zero->run() == one->run());
  for (Version version = 1; version <= 5; ++version) {
    PublishPart(*zero, version, {0, 80000});
    if (version == 1) CHECK_FALSE(host.run().Newest());
    PublishPart(*one, version, {80000, 40000});
    host.Await(version);
  }
}

TEST_CASE("Ranks that write columns of the same tensors report them as rows, and the version has every byte") {
  Host host;
  const auto zero = host.ConnectWith({{0, 50, 1200, 100}}, 0, 2);
  const auto one = host.ConnectWith({{50, 50, 1200, 100}}, 1, 2);
  for (Version version = 1; version <= 3; ++version) {
    std::byte* const data = Begin(*zero, version);
    CHECK(zero->slot() == (version + 1) % 2);
    REQUIRE(one->Begin(version).ok());
    WriteRows(*zero, data, {0, 50, 1200, 100}, static_cast<int>(version));
    REQUIRE(zero->Commit().ok());
    WriteRows(*one, data, {50, 50, 1200, 100}, 7);
    REQUIRE(one->Commit().ok());
    Bytes expected(120000, std::byte{7});
    for (size_t i = 0; i < expected.size(); ++i) {
      if (i % 100 < 50) expected[i] = static_cast<std::byte>(version);
    }
    CHECK(HasBytes(host.Await(version), expected));
  }
  CHECK(host.run().deltas().RouteFrom(2, DeltaStore::kNewest, 120000).at(0)->payload()->header().changed_elements ==
        30000);
}

TEST_CASE("Blocks reported as unchanged are not read, and mixed ones are") {
  Host host;
  const auto rank = host.Connect();
  host.Publish(*rank, 1, 1);
  const ServedVersion first = host.Await(1);
  std::byte* const data = Begin(*rank, 2);
  std::memset(data, 1, 120000);
  // Wrong on purpose, in blocks 0 and 12: only the one that shares its block with new bytes is read.
  data[100] = std::byte{9};
  data[49999] = std::byte{9};
  ReportUnchanged(*rank, {0, 50000});
  Write(*rank, data, {50000, 70000}, 2);
  REQUIRE(rank->Commit().ok());
  const ServedVersion second = host.Await(2);
  Bytes expected(data, data + 120000);
  CHECK_FALSE(HasBytes(second, expected));
  expected[100] = std::byte{1};
  CHECK(HasBytes(second, expected));
  CHECK(second.manifest->block_hashes[0] == first.manifest->block_hashes[0]);
  const DeltaStore::Chain steps = host.run().deltas().RouteFrom(1, DeltaStore::kNewest, 120000);
  REQUIRE(steps.size() == 1);
  REQUIRE(steps[0]->payload()->entries().size() == 18);
  CHECK(steps[0]->payload()->entries()[0].block == 12);
}

TEST_CASE("The first version has nothing to be unchanged from: the hint is ignored") {
  Host host;
  const auto rank = host.Connect();
  std::byte* const data = Begin(*rank, 1);
  std::memset(data, 5, 120000);
  ReportUnchanged(*rank, {0, 120000});
  REQUIRE(rank->Commit().ok());
  CHECK(HasBytes(host.Await(1), Bytes(120000, std::byte{5})));
}

}  // namespace
}  // namespace lockstep::run
