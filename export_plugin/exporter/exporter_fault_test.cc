// After one rank's failure no rank waits for ever, the agent serves no version that is not whole, and the next version
// works.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>

#include "common/base/status_testing.h"
#include "export_plugin/exporter/bucket_header.h"
#include "export_plugin/exporter/exporter_fixture.h"

namespace lockstep::exporter {
namespace {

// Rank 0 is on the agent's host and takes in all others.
FleetOptions OneProxy() {
  return {.shards = 4, .beside = {true, false, false, false}};
}

TEST_CASE("A rank that cannot give its bytes ends the version for all, and the next one works") {
  for (const uint32_t rank : {0, 1, 3}) {
    Fleet fleet(SmallModel(), {.shards = 4, .beside = {true, false, false, rank == 3}});
    fleet.Open();
    fleet.Publish(1);
    std::vector<const void*> addresses;
    for (const LocalTensor& local : fleet.rank(rank).locals) addresses.push_back(local.address);
    auto broken = addresses;
    broken[1] = nullptr;
    fleet.SetAddresses(rank, broken);
    const auto outcomes = fleet.TryPublish(2);
    CHECK_THAT(outcomes[rank], FailsWith(ErrorCode::kBadData, "\"qkv\" has no address"));
    if (rank < 3) CHECK_THAT(outcomes[2], FailsWith(ErrorCode::kAborted, "version 2 was not committed by rank 0"));
    if (rank == 1) CHECK_THAT(outcomes[0], FailsWith(ErrorCode::kAborted, "rank 1 aborted version 2 (bad_data)"));
    CHECK(fleet.host().run().Newest()->manifest->held.version == 1);
    fleet.SetAddresses(rank, addresses);
    fleet.Publish(3);
    fleet.CheckServed(3);
  }
}

TEST_CASE("In a forked process every call of its parent's exporter is refused, and its end is the child's own") {
  Fleet fleet(SmallModel(), {.shards = 1, .beside = {true}, .threads = 2});
  fleet.Open();
  fleet.Publish(1);
  std::vector<std::byte> target(2);
  const auto refused = [](const Status& status) {
    return status.code() == ErrorCode::kState && status.message().find("was forked") != std::string::npos;
  };
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    Exporter& exporter = fleet.exporter(0);
    const bool all = refused(exporter.Publish(2)) && refused(exporter.Abort(2, {ErrorCode::kAborted, "a reason"})) &&
                     refused(exporter.Fill({0, 2}, target.data()));
    fleet.Kill(0);
    ::_exit(all ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(fleet.exporter(0).Fill({0, 2}, target.data()).ok());
  fleet.Publish(2);
  fleet.CheckServed(2);
}

TEST_CASE("A proxy whose agent refuses the version still takes all buckets in and answers with the reason") {
  Fleet fleet(SmallModel(), OneProxy());
  fleet.Open();
  fleet.Publish(5);
  const auto outcomes = fleet.TryPublish(5);
  CHECK(outcomes[0].code() == ErrorCode::kState);
  for (const uint32_t rank : {1, 2, 3}) {
    CHECK_THAT(outcomes[rank], FailsWith(ErrorCode::kAborted, "(state)"));
  }
  fleet.Publish(6);
  fleet.CheckServed(6);
}

TEST_CASE("A remote rank that left a version out costs that one and the next, and is in step then") {
  Fleet fleet(SmallModel(), OneProxy());
  fleet.Open();
  fleet.Publish(1);
  // The others are at 2, rank 2 comes with 4; 3 has no set of it either.
  auto outcomes = fleet.TryPublish(2, {{2, 4}});
  CHECK_THAT(outcomes[0], FailsWith(ErrorCode::kAborted, "rank 2 skipped version 2 and sent version 4"));
  CHECK_THAT(outcomes[2], FailsWith(ErrorCode::kAborted, "version 4 was not committed: rank 0", "was at version 2"));
  CHECK_THAT(outcomes[1], FailsWith(ErrorCode::kAborted, "version 2 was not committed by rank 0"));
  for (const Version version : {3, 4}) {
    outcomes = fleet.TryPublish(version, {{2, kLeftOut}});
    CHECK_THAT(outcomes[0],
               FailsWith(ErrorCode::kAborted, Cat("rank 2 skipped version ", version, " and sent version 4")));
    CHECK(outcomes[1].code() == ErrorCode::kAborted);
  }
  fleet.Publish(5);
  fleet.CheckServed(5);
}

TEST_CASE("A proxy that left a version out answers those that sent it theirs, and takes the next one") {
  Fleet fleet(SmallModel(), OneProxy());
  fleet.Open();
  fleet.Publish(1);
  std::vector<Status> stale(4);
  std::vector<Status> next(4);
  std::vector<std::thread> remote;
  for (const uint32_t rank : {1, 2, 3}) {
    remote.emplace_back([&, rank] {
      stale[rank] = fleet.exporter(rank).Publish(2);
      fleet.rank(rank).Fill(SmallModel(), 3);
      next[rank] = fleet.exporter(rank).Publish(3);
    });
  }
  fleet.rank(0).Fill(SmallModel(), 3);
  next[0] = fleet.exporter(0).Publish(3);
  for (std::thread& thread : remote) thread.join();
  for (const Status& status : next) CHECK(status.ok());
  for (const uint32_t rank : {1, 2, 3}) {
    CHECK_THAT(stale[rank], FailsWith(ErrorCode::kAborted, "version 2 was not committed: rank 0", "was at version 3"));
  }
  fleet.CheckServed(3);
  CHECK(fleet.exporter(0).stats().exchange_memory_bytes <= kMinBucketBytes);
}

TEST_CASE("A rank that failed before it came to publishing aborts the version, and no rank waits or is out of step") {
  for (const uint32_t rank : {0, 1, 2}) {
    Fleet fleet(SmallModel(), {.shards = 4, .beside = {true, false, true, false}});
    fleet.Open();
    fleet.Publish(1);
    Status aborted(ErrorCode::kInternal, "");
    std::thread failing([&] { aborted = fleet.exporter(rank).Abort(2, {ErrorCode::kBadData, "a shape changed"}); });
    const auto outcomes = fleet.TryPublish(2, {{rank, kLeftOut}});
    failing.join();
    CHECK(aborted.ok());
    for (const Status& outcome : outcomes) {
      // A writer that was done before knows nothing of it yet.
      if (!outcome.ok()) CHECK(outcome.code() == ErrorCode::kAborted);
    }
    CHECK(fleet.host().run().Newest()->manifest->held.version == 1);
    fleet.Publish(3);
    fleet.CheckServed(3);
  }
}

TEST_CASE("Writers that come to a version that another aborted get the reason") {
  Fleet fleet(SmallModel(), {.shards = 4, .beside = {true, true, true, false}});
  fleet.Open();
  fleet.Publish(1);
  CHECK(fleet.exporter(1).Abort(2, {ErrorCode::kBadData, "a shape changed"}).ok());
  const auto outcomes = fleet.TryPublish(2, {{1, kLeftOut}});
  CHECK_THAT(outcomes[0], FailsWith(ErrorCode::kAborted, "a shape changed"));
  CHECK_THAT(outcomes[2], FailsWith(ErrorCode::kAborted, "a shape changed"));
  CHECK_THAT(outcomes[3], FailsWith(ErrorCode::kAborted, "version 2 was not committed by rank 0"));
  fleet.Publish(3);
  fleet.CheckServed(3);
}

TEST_CASE("Ranks that leave out and abort versions at random come to the same ones again, and none hangs") {
  std::mt19937 random(7);
  const std::vector<Whole2D> model{{"w", model::DType::kBF16, 63, 64, Cut::kRows},
                                   {"base", model::DType::kBF16, 3 * 64, 16 * 1024, Cut::kRows, true}};
  Fleet fleet(model, {.shards = 3, .beside = {true, false, false}});
  fleet.Open();
  std::vector<std::vector<int>> actions(3);
  for (auto& action : actions) {
    for (Version version = 0; version < 60; ++version)
      action.push_back(version >= 58 ? 0 : static_cast<int>(random() % 4));
  }
  std::vector<Status> last(3);
  std::vector<std::vector<Status>> aborted(3);
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      for (Version version = 1; version <= 60; ++version) {
        const int action = actions[rank][version - 1];
        fleet.rank(rank).Fill(model, version);
        if (action == 1)
          aborted[rank].push_back(fleet.exporter(rank).Abort(version, {ErrorCode::kBadData, "by chance"}));
        if (action != 1 && action != 2) last[rank] = fleet.exporter(rank).Publish(version);
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (uint32_t rank = 0; rank < 3; ++rank) {
    INFO("rank " << rank << ": " << last[rank].ToString());
    CHECK(last[rank].ok());
    for (const Status& status : aborted[rank]) CHECK(status.ok());
  }
  fleet.CheckServed(60);
}

TEST_CASE("A damaged answer costs its version: the frozen tensors that were not asked for are left aside") {
  auto hub = std::make_shared<ExchangeHub>();
  const std::vector<Whole2D> model{{"w", model::DType::kBF16, 64, 64, Cut::kRows},
                                   {"base", model::DType::kBF16, 64, 32 * 1024, Cut::kRows, true}};
  Fleet fleet(model, {.beside = {true, false}}, hub);
  fleet.Open();
  for (Version version = 1; version <= 3; ++version) fleet.Publish(version);
  hub->SetTamper([&](uint32_t from, uint32_t, size_t, std::span<std::byte> message) {
    if (from == 0) message[9] ^= std::byte{1};
  });
  const auto outcomes = fleet.TryPublish(4);
  CHECK(outcomes[0].ok());
  CHECK(outcomes[1].code() == ErrorCode::kCorrupt);
  hub->SetTamper(nullptr);
  fleet.Publish(5);
  fleet.CheckServed(5);
  CHECK(fleet.exporter(1).stats().bytes_frozen == 0);
  fleet.Publish(6);
  fleet.CheckServed(6);
  CHECK(fleet.exporter(1).stats().bytes_frozen > 0);
}

TEST_CASE("A remote rank that is killed breaks the exchange for good, and the others get an error instead of waiting") {
  Fleet fleet(SmallModel(), OneProxy());
  fleet.Open();
  fleet.Publish(1);
  fleet.Kill(1);
  auto outcomes = fleet.TryPublish(2);
  CHECK_THAT(outcomes[0], FailsWith(ErrorCode::kUnavailable, "the exchange with rank 1 is broken"));
  CHECK(outcomes[2].code() == ErrorCode::kAborted);
  CHECK(outcomes[3].code() == ErrorCode::kAborted);
  outcomes = fleet.TryPublish(3);
  CHECK(outcomes[0].code() == ErrorCode::kUnavailable);
  CHECK_THAT(outcomes[2], FailsWith(ErrorCode::kUnavailable, "takes no further version"));
  CHECK(fleet.host().run().Newest()->manifest->held.version == 1);
}

TEST_CASE("A broken exchange is an error on every writer of the host, at once and each time") {
  Fleet fleet(SmallModel(), {.shards = 4, .beside = {true, true, true, false}});
  fleet.Open();
  fleet.Publish(1);
  fleet.Kill(3);  // its proxy is rank 0
  fleet.TryPublish(2);
  for (const Version version : {3, 4}) {
    fleet.rank(0).Fill(SmallModel(), version);
    const Status proxy = fleet.exporter(0).Publish(version);
    CHECK(proxy.code() == ErrorCode::kUnavailable);
    for (const uint32_t rank : {1, 2}) {
      const Status writer = fleet.exporter(rank).Publish(version);
      CHECK_THAT(writer, FailsWith(ErrorCode::kAborted, "the exchange with rank 3 is broken"));
    }
  }
}

TEST_CASE("A proxy that is killed is an error on the ranks that it served") {
  Fleet fleet(SmallModel(), OneProxy());
  fleet.Open();
  fleet.Publish(1);
  fleet.Kill(0);
  const auto outcomes = fleet.TryPublish(2);
  for (const uint32_t rank : {1, 2, 3}) {
    CHECK_THAT(outcomes[rank], FailsWith(ErrorCode::kUnavailable, "the exchange with rank 0 is broken"));
  }
}

TEST_CASE("A peer that dies in the middle of its buckets is an error, not a wait") {
  auto hub = std::make_shared<ExchangeHub>();
  Fleet fleet({{"big", model::DType::kBF16, 1024, 8192, Cut::kColumns}}, {.beside = {true, false}}, hub);
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
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
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
  Fleet fleet({{"w", model::DType::kBF16, 64, 64, Cut::kRows}}, {.beside = {true, false}}, hub);
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
}  // namespace lockstep::exporter
