// The file system that a pair of replicas is on: without room, or in others' hands.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/os/filesystem.h"
#include "common/os/segment.h"
#include "common/os/temp_dir.h"
#include "raas_receiver/replica/private_mount.h"
#include "raas_receiver/replica/replica_fixture.h"
#include "raas_receiver/replica/replica_pair.h"

namespace lockstep::replica {
namespace {

namespace fs = std::filesystem;

// Leaves this much room on the file system of `directory`.
void Fill(const std::string& directory, uint64_t leave) {
  const auto room = os::FileSystemOf(directory);
  REQUIRE(room.ok());
  REQUIRE(room->free_bytes > leave);
  REQUIRE(os::CreateTmpfsSegment(directory + "/filler", room->free_bytes - leave).ok());
}

// Versions 1 and 2 are held, 2 is current.
void PullTwo(ReplicaFixture& fixture) {
  fixture.Open();
  fixture.PullFull(fixture.model.Advance());
  fixture.model.Advance();
  fixture.PullDelta(2);
}

}  // namespace

TEST_CASE("A root that is a file is an error that names it") {
  ReplicaFixture fixture;
  fixture.options.root = fixture.root.File("file");
  std::ofstream(fixture.options.root) << "x";
  const auto pair = ReplicaPair::Open(fixture.options, fixture.pool);
  REQUIRE_THAT(pair, FailsWith(ErrorCode::kIo, fixture.options.root));
}

TEST_CASE("A tmpfs without room is an error that says so, and what is held stays") {
  const PrivateMount mount("size=100k");
  if (!mount.mounted()) return;
  const std::string small = mount.path();
  ReplicaFixture fixture;
  fixture.options.root = small;
  fixture.Open();
  // One replica of about 60 KiB fits with its state, two do not.
  const Status both = fixture.pair().Allocate(fixture.model.layout());
  CHECK_THAT(both, FailsWith(ErrorCode::kResourceExhausted, small));
  fixture.PullFull(fixture.model.Advance());
  fixture.model.Advance();
  CHECK(fixture.pair().BringForward(fixture.model.Chain(1, 2)).status().code() == ErrorCode::kResourceExhausted);
  fixture.CheckCurrent(1);
}

TEST_CASE("A sync that there is no room for gives up nothing: the version before is there to go back to") {
  const PrivateMount mount("size=8m", kOverlay);
  if (!mount.mounted()) return;
  ReplicaFixture fixture;
  fixture.options.root = mount.path() + GENERATE("/root", "/merged/root");  // where leases tell of readers, or do not
  fixture.model = TestModel(1, 20'000, {{"notes.txt", std::string(20'000, ' ')}});
  PullTwo(fixture);
  os::UniqueFd reader;
  TestModel next = fixture.model;
  const std::string wants = GENERATE("a larger file", "a file beside a reader's", "more room for the state");
  if (wants == "a file beside a reader's") {
    reader = os::UniqueFd(::open(fixture.ModelPath("v1/model.safetensors").c_str(), O_RDONLY | O_CLOEXEC));
    Fill(mount.path(), 12'000);
    next.Advance();
    if (!fixture.pair().rewrites_files()) return;  // the reader is unknown: its version is overwritten
    CHECK(ReplicaFixture::TryDelta(fixture.pair(), next, 3).code() == ErrorCode::kResourceExhausted);
  } else {
    next = wants == "a larger file" ? TestModel(5, 100'000)
                                    : TestModel(5, 20'000, {{"notes.txt", std::string(90'000, ' ')}});
    next.Advance();
    Fill(mount.path(), 12'000);
    CHECK_THAT(ReplicaFixture::TryFull(fixture.pair(), next, 1),
               FailsWith(ErrorCode::kResourceExhausted, fixture.options.root, "free; enlarge"));
  }
  CHECK(fixture.pair().previous().held == fixture.model.held(1));
  CHECK(fixture.Directories() == std::set<std::string>{"v1", "v2"});
  fixture.CheckCurrent(2);
  if (GENERATE(true, false)) fixture.Reopen();
  fixture.pair().Abandon();
  REQUIRE(fixture.pair().RollBack({fixture.pair().previous().held}).ok());
  fixture.CheckCurrent(1);
  fs::remove(mount.path() + "/filler");
  fixture.PullFull(next.has(3) ? 3 : 1, next);
}

TEST_CASE("A sync that is ended before it gives the version before up leaves that, and takes no room") {
  ReplicaFixture fixture;
  PullTwo(fixture);
  const bool stopped = GENERATE(false, true);  // while it waits for a reader
  os::UniqueFd reader;
  if (stopped || GENERATE(false, true)) {
    reader = os::UniqueFd(::open(fixture.ModelPath("v1/model.safetensors").c_str(), O_RDONLY | O_CLOEXEC));
  }
  if (stopped) {
    fixture.Close();
    fixture.options.reader_grace = std::chrono::minutes(10);
    fixture.Open();
  }
  std::stop_source stop;
  if (stopped) stop.request_stop();
  fixture.pair().SetMayGiveUp([&] { return false; });
  TestModel next(5, 100'000);
  next.Advance();
  const auto room = [&] {
    uintmax_t blocks = 0;
    for (const auto& entry : fs::recursive_directory_iterator(fixture.ModelPath(".lockstep"))) {
      struct stat info {};
      if (::lstat(entry.path().c_str(), &info) == 0) blocks += static_cast<uintmax_t>(info.st_blocks);
    }
    return blocks;
  };
  const uintmax_t before = room();
  CHECK(fixture.pair().BeginFull(next.layout(), stop.get_token()).code() == ErrorCode::kCancelled);
  CHECK(room() <= before + 8);  // a page: what is kept free for a commit may have grown
  CHECK(fixture.pair().BringForward({}, stop.get_token()).status().code() == ErrorCode::kCancelled);
  CHECK(room() <= before + 8);
  CHECK(fixture.pair().previous().held == fixture.model.held(1));
  CHECK(fixture.Directories() == std::set<std::string>{"v1", "v2"});
  REQUIRE(fixture.pair().RollBack({fixture.model.held(1)}).ok());
  fixture.CheckCurrent(1);
}

TEST_CASE("Another layout takes the room of the version before where there is no other, and all of it is real") {
  const PrivateMount mount("size=8m", kOverlay);
  if (!mount.mounted()) return;
  ReplicaFixture fixture;
  fixture.options.root = mount.path() + GENERATE("/root", "/merged/root");
  PullTwo(fixture);
  const uint64_t elements = GENERATE(10'000, 50'000);
  TestModel next(5, elements);
  next.Advance();
  const uint64_t old_bytes = model::ImageBytes(*fixture.model.layout());
  const uint64_t bytes = model::ImageBytes(*next.layout());
  Fill(mount.path(), 40'000 + 2 * (std::max(bytes, old_bytes) - old_bytes));
  for (int replica : {0, 1}) {
    INFO("replica " << replica);
    fixture.PullFull(1, next);
    fixture.CheckCurrent(1, next);
    struct stat info {};
    REQUIRE(::stat(fixture.ModelPath("current/model.safetensors").c_str(), &info) == 0);
    CHECK(static_cast<uint64_t>(info.st_size) == bytes);
    CHECK(static_cast<uint64_t>(info.st_blocks) * 512 >= bytes);
    CHECK(static_cast<uint64_t>(info.st_blocks) * 512 < bytes + 4096);
  }
  fixture.Reopen();
  fixture.CheckCurrent(1, next);
}

TEST_CASE("A version is gone back to, and another synced, on a file system without any room") {
  const PrivateMount mount("size=400k");
  if (!mount.mounted()) return;
  ReplicaFixture fixture;
  fixture.options.root = mount.path();
  PullTwo(fixture);
  for (const bool full : {false, true}) {
    if (full) Fill(mount.path(), 0);
    REQUIRE(fixture.pair().RollBack({fixture.pair().previous().held}).ok());
    fixture.CheckCurrent(1);
    fixture.PullFull(2);
    fixture.CheckCurrent(2);
  }
}

TEST_CASE("A root or model directory that another user may write is refused") {
  ReplicaFixture fixture;
  PullTwo(fixture);
  fixture.Close();
  const auto refused = [&](const std::string& path, mode_t mode) {
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    const Status status = ReplicaPair::Open(fixture.options, fixture.pool).status();
    REQUIRE(::chmod(path.c_str(), 0755) == 0);
    CHECK_THAT(status, FailsWith(ErrorCode::kPermission, path + " must belong to uid", "Use a directory"));
  };
  refused(fixture.root.path(), 0777);
  refused(fixture.root.path(), 01777);
  refused(fixture.root.path(), 0775);
  refused(fixture.root.File("actor"), 0775);
  fixture.Open();
}

TEST_CASE("A root that another user made, or a link of that user, is refused, and what is there stays as it is") {
  if (::geteuid() != 0) {
    WARN("skipped: only root can give a directory away");
    return;
  }
  ReplicaFixture fixture;
  const std::string theirs = fixture.root.File("theirs");
  const std::string victim = fixture.root.File("victim");
  const std::string link = fixture.root.File("link");
  fs::create_directories(theirs + "/actor");
  fs::create_directory(victim);
  std::ofstream(victim + "/kept") << "x";
  fs::create_symlink(victim, theirs + "/actor/.lockstep");
  fs::create_symlink(victim, link);
  REQUIRE(::chown(theirs.c_str(), 65534, 65534) == 0);
  REQUIRE(::lchown(link.c_str(), 65534, 65534) == 0);
  fixture.options.root = theirs;
  CHECK_THAT(ReplicaPair::Open(fixture.options, fixture.pool),
             FailsWith(ErrorCode::kPermission, theirs + " must belong to uid 0", "it belongs to uid 65534"));
  fixture.options.root = link;
  CHECK_THAT(ReplicaPair::Open(fixture.options, fixture.pool),
             FailsWith(ErrorCode::kPermission, link + " is a link made by uid 65534; remove it"));
  CHECK(fs::exists(victim + "/kept"));
}

TEST_CASE("A root below a directory that another user may write is refused, and one below a sticky one is not") {
  ReplicaFixture fixture;
  const std::string shared = fixture.root.File("shared");
  const std::string link = fixture.root.File("link");
  fs::create_directories(shared + "/ours");
  fs::create_symlink(shared, link);
  for (const std::string& root : {shared + "/ours/root", link + "/ours/root", shared + "/new/root"}) {
    fixture.options.root = root;
    for (const mode_t mode : {0777, 0775}) {
      REQUIRE(::chmod(shared.c_str(), mode) == 0);
      CHECK_THAT(ReplicaPair::Open(fixture.options, fixture.pool),
                 FailsWith(ErrorCode::kPermission, "--root: directory " + shared + " lets others", "or +t"));
    }
    REQUIRE(::chmod(shared.c_str(), 01777) == 0);
    fixture.Open();
    fixture.Close();
  }
}

}  // namespace lockstep::replica
