// What one rank's failure means for the others: nobody waits for ever, nobody serves a version that is not whole, and
// the next version works.
#include <atomic>

#include "trainer_agent/export_plugin/exporter/bucket_header.h"
#include "trainer_agent/export_plugin/exporter/exporter_fixture.h"

namespace lockstep {
namespace {

using Catch::Contains;

// Rank 0 is beside the agent and takes in all others.
FleetOptions OneProxy() {
  return {.shards = 4, .beside = {true, false, false, false}};
}

TEST_CASE("A remote rank that cannot give its bytes ends the version for all, and the next one works") {
  Fleet fleet(SmallModel(), OneProxy());
  fleet.Open();
  fleet.Publish(1);
  std::vector<const void*> addresses;
  for (const LocalTensor& local : fleet.rank(1).locals) addresses.push_back(local.address);
  auto broken = addresses;
  broken[2] = nullptr;
  fleet.SetAddresses(1, broken);
  const auto outcomes = fleet.TryPublish(2);
  CHECK(outcomes[1].code() == ErrorCode::kBadData);
  CHECK_THAT(outcomes[1].message(), Contains("\"o\" has no address"));
  CHECK(outcomes[0].code() == ErrorCode::kAborted);
  CHECK_THAT(outcomes[0].message(), Contains("rank 1 gave version 2 up (bad_data)"));
  CHECK(outcomes[2].code() == ErrorCode::kAborted);
  CHECK_THAT(outcomes[2].message(), Contains("version 2 was not committed by rank 0"));
  fleet.SetAddresses(1, addresses);
  fleet.Publish(3);
  fleet.CheckServed(3);
}

TEST_CASE("A rank beside the agent that cannot give its bytes ends the version for all, and the next one works") {
  for (const uint32_t rank : {0, 3}) {
    Fleet fleet(SmallModel(), {.shards = 4, .beside = {true, false, false, true}});
    fleet.Open();
    std::vector<const void*> addresses;
    for (const LocalTensor& local : fleet.rank(rank).locals) addresses.push_back(local.address);
    auto broken = addresses;
    broken[1] = nullptr;
    fleet.SetAddresses(rank, broken);
    const auto outcomes = fleet.TryPublish(1);
    CHECK(outcomes[rank].code() == ErrorCode::kBadData);
    CHECK_THAT(outcomes[rank].message(), Contains("\"qkv\" has no address"));
    CHECK_FALSE(fleet.host().run().Newest());
    fleet.SetAddresses(rank, addresses);
    fleet.Publish(2);
    fleet.CheckServed(2);
  }
}

TEST_CASE("A proxy whose agent refuses the version still takes everything in and says so") {
  Fleet fleet(SmallModel(), OneProxy());
  fleet.Open();
  fleet.Publish(5);
  const auto outcomes = fleet.TryPublish(5);
  CHECK(outcomes[0].code() == ErrorCode::kState);
  for (const uint32_t rank : {1, 2, 3}) {
    CHECK(outcomes[rank].code() == ErrorCode::kAborted);
    CHECK_THAT(outcomes[rank].message(), Contains("(state)"));
  }
  fleet.Publish(6);
  fleet.CheckServed(6);
}

TEST_CASE("A rank that publishes another version is told both, and nobody's bytes are taken for another's") {
  Fleet fleet(SmallModel(), OneProxy());
  fleet.Open();
  fleet.Publish(1);
  const auto outcomes = fleet.TryPublish(3, {{2, 2}});
  CHECK(outcomes[0].code() == ErrorCode::kProtocol);
  CHECK_THAT(outcomes[0].message(), Contains("rank 2: its version is 2, here it is 3"));
  CHECK(outcomes[2].code() == ErrorCode::kProtocol);
  CHECK_THAT(outcomes[2].message(), Contains("rank 0: its version is 3, here it is 2"));
  CHECK(outcomes[1].code() == ErrorCode::kAborted);
  fleet.Publish(4);
  fleet.CheckServed(4);
}

TEST_CASE("A remote rank that is killed breaks the exchange for good, and the others are told instead of waiting") {
  Fleet fleet(SmallModel(), OneProxy());
  fleet.Open();
  fleet.Publish(1);
  fleet.Kill(1);
  auto outcomes = fleet.TryPublish(2);
  CHECK(outcomes[0].code() == ErrorCode::kUnavailable);
  CHECK_THAT(outcomes[0].message(), Contains("the exchange with rank 1 is broken"));
  CHECK(outcomes[2].code() == ErrorCode::kAborted);
  CHECK(outcomes[3].code() == ErrorCode::kAborted);
  outcomes = fleet.TryPublish(3);
  CHECK(outcomes[0].code() == ErrorCode::kUnavailable);
  CHECK(outcomes[2].code() == ErrorCode::kUnavailable);
  CHECK_THAT(outcomes[2].message(), Contains("takes no further version"));
  CHECK(fleet.host().run().Newest()->manifest->held.version == 1);
}

TEST_CASE("A proxy that is killed is an error on the ranks that it served") {
  Fleet fleet(SmallModel(), OneProxy());
  fleet.Open();
  fleet.Publish(1);
  fleet.Kill(0);
  const auto outcomes = fleet.TryPublish(2);
  for (const uint32_t rank : {1, 2, 3}) {
    CHECK(outcomes[rank].code() == ErrorCode::kUnavailable);
    CHECK_THAT(outcomes[rank].message(), Contains("the exchange with rank 0 is broken"));
  }
}

TEST_CASE("A peer that dies in the middle of its buckets is an error, not a wait") {
  auto hub = std::make_shared<ExchangeHub>();
  Fleet fleet({{"big", DType::kBF16, 1024, 8192, Cut::kColumns}}, {.beside = {true, false}}, hub);
  fleet.Open();
  fleet.Publish(1);
  std::thread killer;
  std::atomic<bool> started = false;
  hub->SetTamper([&](uint32_t from, uint32_t, size_t, std::span<std::byte>) {
    if (from != 1 || started.exchange(true)) return;
    killer = std::thread([&] { hub->Break(1); });
  });
  const auto outcomes = fleet.TryPublish(2);
  killer.join();
  CHECK(outcomes[0].code() == ErrorCode::kUnavailable);
  CHECK(outcomes[1].code() == ErrorCode::kUnavailable);
  CHECK(fleet.host().run().Newest()->manifest->held.version == 1);
}

TEST_CASE("An agent that went away costs the version, not the exchange") {
  Fleet fleet(SmallModel(), OneProxy());
  fleet.Open();
  fleet.Publish(1);
  fleet.host().Stop();
  std::thread restart([&] {
    std::this_thread::sleep_for(milliseconds(300));
    fleet.host().Start();
  });
  const auto outcomes = fleet.TryPublish(2);
  restart.join();
  for (const Status& outcome : outcomes) CHECK(outcome.code() != ErrorCode::kInternal);
  fleet.TryPublish(3);
  fleet.Publish(4);
  fleet.CheckServed(4);
}

TEST_CASE("A changed bit of any header field, or of the payload, is refused") {
  auto hub = std::make_shared<ExchangeHub>();
  Fleet fleet({{"w", DType::kBF16, 64, 64, Cut::kRows}}, {.beside = {true, false}}, hub);
  fleet.Open();
  std::atomic<size_t> flip = 0;
  hub->SetTamper([&](uint32_t from, uint32_t, size_t, std::span<std::byte> message) {
    if (from == 1) message[flip / 8] ^= static_cast<std::byte>(1 << (flip % 8));
  });
  Version version = 0;
  for (flip = 0; flip < 8 * (sizeof(BucketHeader) + 4); flip += 3) {
    const auto outcomes = fleet.TryPublish(++version);
    INFO("bit " << flip << ": " << outcomes[0].ToString());
    CHECK((outcomes[0].code() == ErrorCode::kCorrupt || outcomes[0].code() == ErrorCode::kProtocol));
    CHECK(outcomes[1].code() == ErrorCode::kAborted);
  }
  CHECK_FALSE(fleet.host().run().Newest());
  hub->SetTamper([&](uint32_t from, uint32_t, size_t, std::span<std::byte> message) {
    if (from == 0) message[9] ^= std::byte{1};
  });
  CHECK(fleet.TryPublish(++version)[1].code() == ErrorCode::kCorrupt);
  hub->SetTamper(nullptr);
  fleet.Publish(++version);
  fleet.CheckServed(version);
}

}  // namespace
}  // namespace lockstep
