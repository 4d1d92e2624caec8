#include "raas_receiver/replica/replica_pair.h"

#include <sys/stat.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <thread>

#include "common/base/eventually.h"
#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/os/temp_dir.h"
#include "raas_receiver/replica/replica_fixture.h"
#include "raas_receiver/replica/scrubber.h"

namespace lockstep::replica {

namespace fs = std::filesystem;

TEST_CASE("A full version is published as a safetensors file under current") {
  ReplicaFixture fixture;
  fixture.Open();
  CHECK(fixture.pair().current().held.nothing());
  fixture.PullFull(fixture.model.Advance());
  CHECK(fixture.pair().current().held == fixture.model.held(1));
  CHECK(fs::read_symlink(fixture.ModelPath("current")) == "v1");
  CHECK(fixture.pair().current().path == fixture.ModelPath("v1"));
  fixture.CheckCurrent(1);
}

TEST_CASE("What is published is for its user and group alone, whatever the umask") {
  for (const mode_t mask : {mode_t{0}, mode_t{077}}) {
    const mode_t before = ::umask(mask);
    ReplicaFixture fixture;
    fixture.options.root += "/root";
    const os::TempDir assets;
    fs::create_directory(assets.File("1_Pooling"));
    fixture.options.assets = assets.path();
    fixture.Open();
    fixture.PullFull(fixture.model.Advance());
    ::umask(before);
    const auto mode = [](const std::string& path) { return static_cast<unsigned>(fs::status(path).permissions()); };
    CHECK(mode(fixture.ModelPath("v1/model.safetensors")) == 0640);
    CHECK(mode(fixture.ModelPath("v1")) == 0750);
    CHECK(mode(fixture.ModelPath("v1/1_Pooling")) == 0750);
    CHECK(mode(fixture.ModelPath("")) == 0750);
    CHECK(mode(fixture.options.root) == 0750);
  }
}

TEST_CASE("Deltas alternate between the replicas and always come out whole") {
  ReplicaFixture fixture;
  fixture.options.keep_delta_bytes = GENERATE(uint64_t{0}, uint64_t{4'000}, uint64_t{1} << 30);
  fixture.Open();
  fixture.PullFull(fixture.model.Advance());
  for (int i = 0; i < 12; ++i) {
    const Version base = fixture.pair().current().held.version;
    for (int step = 0; step <= i % 3; ++step) fixture.model.Advance();
    const Version target = base + 1 + static_cast<Version>(i % 3);
    fixture.PullDelta(target);
    fixture.CheckCurrent(target);
    CHECK(fixture.pair().previous().held == fixture.model.held(base));
    CHECK(fixture.Directories() == std::set<std::string>{"v" + std::to_string(base), "v" + std::to_string(target)});
  }
  CHECK(fixture.pair().replaced() == 0);
}

TEST_CASE("Rolling back makes the version before current again, and the next sync continues from it") {
  ReplicaFixture fixture;
  fixture.Open();
  CHECK(fixture.pair().SwitchToOther().code() == ErrorCode::kState);
  fixture.PullFull(fixture.model.Advance());
  CHECK(fixture.pair().SwitchToOther().code() == ErrorCode::kState);
  fixture.model.Advance();
  fixture.PullDelta(2);
  REQUIRE(fixture.pair().SwitchToOther().ok());
  fixture.CheckCurrent(1);
  fixture.model.Advance();
  fixture.PullDelta(3);
  fixture.CheckCurrent(3);
  CHECK(fixture.pair().previous().held == fixture.model.held(1));
}

TEST_CASE("A sync that is abandoned leaves the current version, and the next one starts again") {
  ReplicaFixture fixture;
  fixture.Open();
  fixture.PullFull(fixture.model.Advance());
  fixture.model.Advance();
  fixture.PullDelta(2);
  fixture.model.Advance();
  REQUIRE(fixture.pair().BringForward(fixture.model.Chain(2, 3)).ok());
  fixture.pair().Abandon();
  fixture.CheckCurrent(2);
  CHECK(fixture.pair().previous().held.nothing());
  fixture.PullDelta(3);
  fixture.CheckCurrent(3);
  CHECK(fixture.pair().replaced() == 0);
}

TEST_CASE("After a restart both versions are there, proved, and current stays where it was") {
  ReplicaFixture fixture;
  fixture.Open();
  fixture.PullFull(fixture.model.Advance());
  fixture.model.Advance();
  fixture.PullDelta(2);
  const bool rolled_back = GENERATE(false, true);
  if (rolled_back) REQUIRE(fixture.pair().SwitchToOther().ok());
  fixture.Reopen();
  fixture.CheckCurrent(rolled_back ? 1 : 2);
  CHECK(fixture.pair().previous().held == fixture.model.held(rolled_back ? 2 : 1));
  fixture.model.Advance();
  fixture.PullDelta(3);
  fixture.CheckCurrent(3);
}

TEST_CASE("What was damaged while no receiver ran is not believed") {
  ReplicaFixture fixture;
  fixture.Open();
  fixture.PullFull(fixture.model.Advance());
  fixture.model.Advance();
  fixture.PullDelta(2);
  fixture.Close();
  SECTION("one byte of the current replica: the other one becomes current") {
    fixture.FlipByte(fixture.ModelPath("v2/model.safetensors"));
    fixture.Open();
    fixture.CheckCurrent(1);
    CHECK(fixture.Directories() == std::set<std::string>{"v1"});
  }
  SECTION("both replicas: nothing is published") {
    fixture.FlipByte(fixture.ModelPath("v1/model.safetensors"));
    fixture.FlipByte(fixture.ModelPath("v2/model.safetensors"));
    fixture.Open();
    CHECK(fixture.pair().current().held.nothing());
    CHECK(fixture.Directories().empty());
    CHECK_FALSE(fs::exists(fs::symlink_status(fixture.ModelPath("current"))));
  }
  SECTION("the state files: nothing is published") {
    for (const char* state : {"replica-0.state", "replica-1.state"}) {
      fixture.FlipByte(fixture.ModelPath(std::string(".lockstep/") + state));
    }
    fixture.Open();
    CHECK(fixture.pair().current().held.nothing());
  }
  SECTION("a directory and the link: they are made again") {
    fs::remove_all(fixture.ModelPath("v2"));
    fs::remove(fixture.ModelPath("current"));
    fs::create_directory(fixture.ModelPath("v77"));
    fixture.Open();
    fixture.CheckCurrent(2);
    CHECK(fixture.Directories() == std::set<std::string>{"v1", "v2"});
  }
}

TEST_CASE("Verify names the blocks and tensors whose bytes differ") {
  ReplicaFixture fixture;
  fixture.Open();
  CHECK(fixture.pair().Verify().status().code() == ErrorCode::kState);
  fixture.PullFull(fixture.model.Advance());
  fixture.CheckCurrent(1);
  fixture.FlipByte(fixture.ModelPath("v1/model.safetensors"));
  const Result<VerifyReport> report = fixture.pair().Verify();
  REQUIRE(report.ok());
  CHECK(report->computed != report->recorded);
  CHECK(report->bad_blocks.size() == 1);
  CHECK(report->bad_tensors == model::TensorsInBlocks(*fixture.model.layout(), report->bad_blocks));
}

TEST_CASE("A version that is verified keeps its memory until that ends, although it is dropped meanwhile") {
  ReplicaFixture fixture;
  fixture.model = TestModel(1, 8'000'000);  // takes a while to hash
  const auto other = *model::ModelLayout::Create({{"other", model::DType::kU8, {100'000}, 0}}, 4096);
  fixture.Open();
  const Version version = fixture.model.Advance();
  fixture.PullFull(version);
  std::atomic<bool> done = false;
  std::atomic<int> bad = 0;
  std::thread verifier([&] {
    while (!done) {
      const auto report = fixture.pair().Verify();
      if (!report.ok() || !report->bad_blocks.empty()) ++bad;
    }
  });
  for (int i = 0; i < 20; ++i) {
    CHECK(ReplicaFixture::TryFull(fixture.pair(), fixture.model, version).ok());
    CHECK(fixture.pair().DropOther().ok());
    CHECK(fixture.pair().Allocate(other).ok());
  }
  done = true;
  verifier.join();
  CHECK(bad == 0);
}

TEST_CASE("Damage to the current replica is not copied into the other one unnoticed") {
  ReplicaFixture fixture;
  fixture.Open();
  fixture.PullFull(fixture.model.Advance());
  fixture.FlipByte(fixture.ModelPath("current/model.safetensors"));
  const auto damaged = fixture.pair().BringForward({});
  REQUIRE(damaged.ok());
  CHECK(*damaged == std::vector<BlockIndex>{fixture.model.layout()->block_count() - 1});
  CHECK(fixture.pair().current().damaged);
}

TEST_CASE("Every block of both replicas is hashed in a round, however often the two change places") {
  ReplicaFixture fixture;
  fixture.model.frozen_end = true;
  fixture.Open();
  fixture.PullFull(fixture.model.Advance());
  fixture.PullDelta(fixture.model.Advance());
  const bool current = GENERATE(true, false);
  fixture.FlipByte((current ? fixture.pair().current() : fixture.pair().previous()).path + "/model.safetensors");
  Scrubber scrubber(std::chrono::milliseconds(1));  // each step hashes one replica
  bool found = false;
  for (int step = 0; step < 4 && !found; ++step) {
    found = Eventually([&] { return scrubber.UntilDue().count() == 0; }) && scrubber.Step(fixture.pair());
    if (!found) fixture.PullDelta(fixture.model.Advance());
  }
  CHECK(found);
}

TEST_CASE(
    "A damaged version is made again from what is whole in either replica, and what is whole in neither is named") {
  ReplicaFixture fixture;
  fixture.options.keep_delta_bytes = GENERATE(uint64_t{0}, uint64_t{1} << 30);
  fixture.Open();
  fixture.PullFull(fixture.model.Advance());
  const bool led_to = GENERATE(true, false);  // by a kept delta, where there is one
  if (led_to) {
    fixture.PullDelta(fixture.model.Advance());
  } else {
    fixture.PullFull(1);
  }
  const VersionRef held = fixture.pair().current().held;
  const std::string other = fixture.ModelPath(".lockstep/replica-0.safetensors");
  constexpr int kFromEnd = 5000;  // in a block that deltas touch
  fixture.FlipByte(fixture.pair().current().path + "/model.safetensors", kFromEnd);
  const model::ModelLayout& layout = *fixture.model.layout();
  const auto damaged = static_cast<BlockIndex>((layout.data_bytes() - kFromEnd) / layout.block_bytes());
  const bool both = GENERATE(true, false);
  if (both) fixture.FlipByte(other, kFromEnd);
  fixture.pair().target_block(0)[7] ^= std::byte{1};
  CHECK(fixture.pair().Verify()->bad_blocks == std::vector{damaged});
  CHECK(fixture.pair().current().damaged);
  const auto lost = fixture.pair().BringForward({});
  REQUIRE(lost.ok());
  const bool here = !both && (!led_to || fixture.options.keep_delta_bytes > 0);
  CHECK(*lost == (here ? std::vector<BlockIndex>{} : std::vector<BlockIndex>{damaged}));
  const ByteView bytes = fixture.model.block_of(held.version, damaged);
  std::copy(bytes.begin(), bytes.end(), fixture.pair().target_block(damaged).begin());
  REQUIRE(fixture.pair().Commit(fixture.model.manifest(held.version), 1, {}).ok());
  fixture.CheckCurrent(held.version);
  CHECK_FALSE(fixture.pair().current().damaged);
  CHECK(fixture.pair().previous().damaged);
  CHECK(fixture.pair().SwitchToOther().code() == ErrorCode::kState);
}

TEST_CASE("A delta is made from what is whole, whichever replica is damaged") {
  ReplicaFixture fixture;
  fixture.Open();
  fixture.PullFull(fixture.model.Advance());
  fixture.PullDelta(fixture.model.Advance());
  const bool current = GENERATE(true, false);
  const PublishedVersion damaged = current ? fixture.pair().current() : fixture.pair().previous();
  fixture.FlipByte(damaged.path + "/model.safetensors");
  fixture.Scrub();
  const std::vector<Damage> found = fixture.pair().TakeDamage();
  REQUIRE(found.size() == 1);
  CHECK(found[0].held == damaged.held);
  CHECK(found[0].blocks == std::vector<BlockIndex>{fixture.model.layout()->block_count() - 1});
  const bool dropped = GENERATE(true, false);
  if (!current && dropped) REQUIRE(fixture.pair().DropOther().ok());
  fixture.PullDelta(fixture.model.Advance());
  fixture.CheckCurrent(3);
  CHECK_FALSE(fixture.pair().current().damaged);
}

TEST_CASE("Replica files that were removed are replaced by the next sync") {
  ReplicaFixture fixture;
  fixture.Open();
  fixture.PullFull(fixture.model.Advance());
  fixture.PullDelta(fixture.model.Advance());
  for (const char* name : {"replica-0", "replica-1"}) {
    REQUIRE(fs::remove(fixture.ModelPath(std::string(".lockstep/") + name + ".safetensors")));
  }
  fixture.PullDelta(fixture.model.Advance());
  fixture.PullDelta(fixture.model.Advance());
  fixture.CheckCurrent(4);
}

TEST_CASE("Memory for a layout that never came to a version makes room for the next") {
  ReplicaFixture fixture;
  fixture.Open();
  const auto other = *model::ModelLayout::Create({{"other", model::DType::kU8, {100'000}, 0}}, 4096);
  REQUIRE(fixture.pair().Allocate(other).ok());
  REQUIRE(fixture.pair().Allocate(fixture.model.layout()).ok());
  CHECK(fs::file_size(fixture.ModelPath(".lockstep/replica-0.safetensors")) ==
        model::ImageBytes(*fixture.model.layout()));
  fixture.PullFull(fixture.model.Advance());
  fixture.CheckCurrent(1);
}

TEST_CASE("The same version number of another run gets a name of its own") {
  ReplicaFixture fixture;
  fixture.Open();
  fixture.PullFull(fixture.model.Advance());
  TestModel other(99);
  other.Advance();
  fixture.PullFull(1, other);
  const std::string name = "v1-" + ToHex(other.run()).substr(0, 8);
  CHECK(fs::read_symlink(fixture.ModelPath("current")) == name);
  CHECK(fixture.Directories() == std::set<std::string>{"v1", name});
  fixture.Reopen();
  CHECK(fixture.pair().current().held == other.held(1));
}

TEST_CASE("Another layout gets new memory, and the old version stays until the new one is whole") {
  ReplicaFixture fixture;
  fixture.Open();
  fixture.PullFull(fixture.model.Advance());
  TestModel larger(5, 30'000);
  larger.Advance();
  REQUIRE(fixture.pair().Allocate(larger.layout()).ok());
  REQUIRE(fixture.pair().BeginFull(larger.layout()).ok());
  fixture.CheckCurrent(1);
  fixture.PullFull(1, larger);
  CHECK(fixture.pair().current().layout->digest() == larger.layout()->digest());
  fixture.PullFull(1, larger);
  CHECK(fixture.pair().previous().layout->digest() == larger.layout()->digest());
}

TEST_CASE("A directory belongs to one receiver at a time") {
  ReplicaFixture fixture;
  fixture.Open();
  const auto second = ReplicaPair::Open(fixture.options, fixture.pool);
  CHECK_THAT(second, FailsWith(ErrorCode::kState, fixture.root.path() + "/actor"));
}

TEST_CASE("Kept deltas are one chain: those that do not follow its end take its place") {
  TestModel model;
  while (model.Advance() < 4) {
  }
  KeptDeltas kept(1 << 20, /*keep_older=*/true);
  kept.Add(model.Chain(1, 3), model.held(1));
  kept.Add(model.Chain(3, 4), model.held(3));
  CHECK(kept.Between(model.held(1), model.held(4)).size() == 3);
  kept.Add({model.Delta(2, 4)}, model.held(2));  // after a rollback
  CHECK(kept.Between(model.held(1), model.held(4)).empty());
  CHECK(kept.Between(model.held(2), model.held(4)).size() == 1);
}

TEST_CASE("What the engine last took is remembered across restarts") {
  ReplicaFixture fixture;
  fixture.Open();
  CHECK(fixture.pair().served("default").nothing());
  fixture.PullFull(fixture.model.Advance());
  REQUIRE(fixture.pair().MarkServed("default", fixture.model.held(1)).ok());
  fixture.Reopen();
  CHECK(fixture.pair().served("default") == fixture.model.held(1));
}

TEST_CASE("After a reboot no engine is known to serve anything") {
  ReplicaFixture fixture;
  fixture.Open();
  fixture.PullFull(fixture.model.Advance());
  REQUIRE(fixture.pair().MarkServed("default", fixture.model.held(1)).ok());
  const std::string notes = fixture.ModelPath(".lockstep/served");
  const std::string written = ReplicaFixture::FileText(notes);
  std::string boot = ReplicaFixture::FileText("/proc/sys/kernel/random/boot_id");
  CHECK(written.starts_with("boot " + boot));
  boot.front() = boot.front() == '0' ? '1' : '0';
  std::ofstream(notes) << "boot " << boot << written.substr(written.find('\n') + 1);
  fixture.Reopen();
  CHECK(fixture.pair().served("default").nothing());
  REQUIRE(fixture.pair().MarkServed("other", fixture.model.held(1)).ok());
  fixture.Reopen();
  CHECK(fixture.pair().served("default").nothing());
  CHECK(fixture.pair().served("other") == fixture.model.held(1));
}

}  // namespace lockstep::replica
