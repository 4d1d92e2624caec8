// A receiver killed at any edge of a sync, and readers that hold on to old versions: both as real processes.

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "raas_receiver/replica/private_mount.h"
#include "raas_receiver/replica/replica_fixture.h"

namespace lockstep::replica {
namespace {

namespace fs = std::filesystem;

enum class Sync { kFirst, kDelta, kFull };

constexpr int kDied = 3;
constexpr int kFinished = 4;
constexpr int kFailed = 5;

// Runs one sync in a child that dies, as by SIGKILL, at the edge number `dies_at`. The child's exit status.
int RunAndDie(const ReplicaFixture& fixture, Sync kind, int dies_at) {
  const pid_t child = ::fork();
  if (child == 0) {
    int edge = 0;
    ReplicaOptions options = fixture.options;
    options.at_edge = [&](std::string_view) {
      if (edge++ == dies_at) ::_exit(kDied);
    };
    WorkerPool pool(1);
    auto pair = ReplicaPair::Open(options, pool);
    if (!pair.ok()) ::_exit(kFailed);
    const Status status = kind == Sync::kDelta
                              ? ReplicaFixture::TryDelta(**pair, fixture.model, 3)
                              : ReplicaFixture::TryFull(**pair, fixture.model, kind == Sync::kFirst ? 1 : 3);
    ::_exit(status.ok() ? kFinished : kFailed);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// A process that holds the model file of the current version open, or only mapped, and exits with whether it still
// sees the bytes that it saw first.
class Reader {
 public:
  Reader(const std::string& path, bool keep_open) {
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    child_ = ::fork();
    if (child_ == 0) Read(path, keep_open, ready[1]);
    ::close(ready[1]);
    char byte = 0;
    REQUIRE(::read(ready[0], &byte, 1) == 1);
    ::close(ready[0]);
  }
  ~Reader() {
    if (child_ > 0) StillSeesTheSame();
  }
  bool StillSeesTheSame() {
    ::kill(child_, SIGUSR1);
    int status = 0;
    ::waitpid(std::exchange(child_, -1), &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  [[noreturn]] static void Read(const std::string& path, bool keep_open, int ready) {
    sigset_t wake;
    sigemptyset(&wake);
    sigaddset(&wake, SIGUSR1);
    ::sigprocmask(SIG_BLOCK, &wake, nullptr);
    const int file = ::open(path.c_str(), O_RDONLY);
    const size_t bytes = fs::file_size(path);
    const auto* mapped = static_cast<const std::byte*>(::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0));
    if (mapped == MAP_FAILED) ::_exit(1);
    const Bytes first(mapped, mapped + bytes);
    if (!keep_open) ::close(file);
    if (::write(ready, "r", 1) != 1) ::_exit(1);
    int signal = 0;
    ::sigwait(&wake, &signal);
    ::_exit(std::equal(first.begin(), first.end(), mapped) ? 0 : 2);
  }

  pid_t child_ = -1;
};

}  // namespace

TEST_CASE("A receiver killed at any edge of any sync comes back with a whole version or none") {
  const Sync kind = GENERATE(Sync::kFirst, Sync::kDelta, Sync::kFull);
  int status = kDied;
  int edges = 0;
  for (; status == kDied; ++edges) {
    ReplicaFixture fixture;
    fixture.model = TestModel(1, 20'000, {{"adapter_config.json", R"({"r": 8})"}});
    for (int i = 0; i < 3; ++i) fixture.model.Advance();
    if (kind != Sync::kFirst) {
      fixture.Open();
      fixture.PullFull(1);
      fixture.PullDelta(2);
      fixture.Close();
    }
    status = RunAndDie(fixture, kind, edges);
    REQUIRE((status == kDied || status == kFinished));
    INFO("killed at edge " << edges);
    fixture.Open();
    CHECK(fixture.pair().TakeDamage().empty());  // what is written when it dies is no version any more
    const Version target = kind == Sync::kFirst ? 1 : 3;
    const VersionRef held = fixture.pair().current().held;
    if (!held.nothing()) {
      CHECK((held.version == target || held.version == target - 1));
      fixture.CheckCurrent(held.version);
    } else {
      CHECK(kind == Sync::kFirst);
      CHECK(fixture.Directories().empty());
      CHECK_FALSE(fs::exists(fs::symlink_status(fixture.ModelPath("current"))));
    }
    for (const auto& entry : fs::directory_iterator(fixture.ModelPath(".lockstep"))) {
      CHECK(entry.path().filename().string().find("tmp") == std::string::npos);
    }
    if (status == kFinished) CHECK(held.version == target);
    if (held.version == target) continue;
    fixture.PullFull(target);
    fixture.CheckCurrent(target);
  }
  CHECK(edges >= 5);
}

TEST_CASE("A file that a reader has open or mapped is never written; it is replaced") {
  const bool keep_open = GENERATE(true, false);
  ReplicaFixture fixture;
  fixture.Open();
  fixture.PullFull(fixture.model.Advance());
  Reader reader(fixture.ModelPath("current/model.safetensors"), keep_open);
  for (Version version = 2; version <= 4; ++version) {
    fixture.model.Advance();
    fixture.PullDelta(version);
    fixture.CheckCurrent(version);
  }
  CHECK(fixture.pair().replaced() == 1);
  CHECK(reader.StillSeesTheSame());
}

TEST_CASE("Where a lease is granted although a reader has the file mapped, every version gets a new file") {
  const PrivateMount mount("size=8m", kOverlay);
  if (!mount.mounted()) return;
  ReplicaFixture fixture;
  fixture.options.root = mount.path() + "/merged";
  fixture.Open();
  CHECK_FALSE(fixture.pair().rewrites_files());
  fixture.PullFull(fixture.model.Advance());
  Reader reader(fixture.ModelPath("current/model.safetensors"), false);
  for (Version version = 2; version <= 4; ++version) {
    fixture.model.Advance();
    fixture.PullDelta(version);
    fixture.CheckCurrent(version);
  }
  CHECK(fixture.pair().replaced() == 2);  // all but the first of each replica
  CHECK(reader.StillSeesTheSame());
}

TEST_CASE("A reader that leaves within the grace keeps its file from being replaced") {
  ReplicaFixture fixture;
  fixture.options.reader_grace = std::chrono::hours(1);
  fixture.Open();
  fixture.PullFull(fixture.model.Advance());
  fixture.model.Advance();
  fixture.PullDelta(2);
  fixture.model.Advance();
  Reader reader(fixture.ModelPath("v1/model.safetensors"), false);
  std::thread leaves([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    (void)reader.StillSeesTheSame();
  });
  fixture.PullDelta(3);
  leaves.join();
  fixture.CheckCurrent(3);
  CHECK(fixture.pair().replaced() == 0);
}

TEST_CASE("A file that has another link is replaced") {
  ReplicaFixture fixture;
  fixture.Open();
  fixture.PullFull(fixture.model.Advance());
  fs::create_hard_link(fixture.ModelPath("v1/model.safetensors"), fixture.root.File("kept"));
  for (Version version = 2; version <= 3; ++version) {
    fixture.model.Advance();
    fixture.PullDelta(version);
  }
  CHECK(fixture.pair().replaced() == 1);
  CHECK(ReplicaFixture::FileBytes(fixture.root.File("kept")) == ReplicaFixture::Image(fixture.model, 1));
}

}  // namespace lockstep::replica
