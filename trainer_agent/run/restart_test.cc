// Runs: restarted agents and trainers, and the segments that outlive them.
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "common/base/status_testing.h"
#include "trainer_agent/run/publish_fixture.h"

namespace lockstep::run {
namespace {

TEST_CASE("A restarted trainer starts a new run; a second one at the same time is refused") {
  Host host;
  auto first = host.Connect();
  host.Publish(*first, 9, 1);
  const auto refused = client::RankClient::Open(host.Options());
  CHECK_THAT(refused, FailsWith(ErrorCode::kState, "connected already"));
  const RunId run = first->run();
  first.reset();
  const auto second = host.Connect();
  CHECK(second->run() != run);
  CHECK_FALSE(host.run().Newest());
  host.Publish(*second, 1, 2);
}

TEST_CASE("A model is dropped when no trainer is connected: its memory is free, and no receiver is served it") {
  for (const bool memfd : {false, true}) {
    Host host(memfd);
    auto rank = host.Connect();
    host.Publish(*rank, 1, 1);
    host.Publish(*rank, 2, 2);
    CHECK_THAT(host.Drop(), FailsWith(ErrorCode::kState, "model actor: 1 ranks of its trainer are connected"));
    const std::shared_ptr<ServedRun> run = host.shared_run();
    const RunId of = rank->run();
    rank.reset();
    const auto dropped = host.Drop();
    REQUIRE(dropped.ok());
    CHECK(dropped->run == of);
    CHECK(dropped->bytes > 2 * 120000);
    CHECK(host.catalog().Find("actor") == nullptr);
    CHECK(UseFirstBlock(*run, 2) == ErrorCode::kState);
    CHECK_THAT(host.Drop(), FailsWith(ErrorCode::kNotFound, "model actor is not open here"));
    host.Restart();  // and nothing of it comes back
    CHECK(host.catalog().Find("actor") == nullptr);
    const auto next = host.Connect();
    host.Publish(*next, 1, 3);
  }
}

TEST_CASE("An agent that is restarted between versions resumes the same run, deltas and all") {
  for (const bool memfd : {false, true}) {
    Host host(memfd);
    const auto rank = host.Connect();
    for (Version version = 1; version <= 3; ++version) {
      host.Publish(*rank, version, static_cast<int>(version));
    }
    host.Restart();
    if (!memfd) {
      host.Await(3);
      CHECK(host.run().deltas().RouteFrom(1, DeltaStore::kNewest, 1 << 20).size() == 2);
    }
    host.Publish(*rank, 4, 4);
    CHECK(host.run().run() == rank->run());
    CHECK(host.run().deltas().RouteFrom(3, DeltaStore::kNewest, 120000).size() == 1);
    CHECK(host.run().deltas().RouteFrom(2, DeltaStore::kNewest, 240000).size() == 2);
  }
}

TEST_CASE("An agent that is restarted knows the labels of the versions that it still has") {
  Host host;
  const auto rank = host.Connect();
  for (const Version version : {1, 2, 3}) {
    Write(*rank, Begin(*rank, version), {0, 120000}, static_cast<int>(version));
    REQUIRE(rank->SetLabel(version == 3 ? std::string(64, 'x') : "step").ok());
    REQUIRE(rank->Commit().ok());
    host.Await(version);
  }
  host.Restart();
  CHECK(host.Await(3).label == std::string(64, 'x'));
  CHECK(host.run().NewestLabelled("step") == 2);
}

TEST_CASE("An agent that dies before a commit is answered gets the label again") {
  Host host;
  const auto rank = host.Connect();
  Write(*rank, Begin(*rank, 1), {0, 120000}, 1);
  REQUIRE(rank->SetLabel("step").ok());
  host.Restart();
  REQUIRE(rank->Commit().ok());
  CHECK(host.Await(1).label == "step");
}

TEST_CASE("An agent that is restarted in the middle of a version gets its batches again") {
  for (const bool memfd : {false, true}) {
    Host host(memfd);
    const auto rank = host.Connect();
    host.Publish(*rank, 1, 1);
    std::byte* const data = Begin(*rank, 2);
    Write(*rank, data, {0, 50000}, 2);
    host.Stop();
    std::memset(data + 50000, 2, 70000);
    host.Start();
    REQUIRE(rank->BatchesDone(BatchesOf(*rank, {50000, 70000})).ok());
    REQUIRE(rank->Commit().ok());
    host.Await(2);
    CHECK(FirstByte(host.run(), 2) == std::byte{2});
    CHECK(host.run().deltas().RouteFrom(1, DeltaStore::kNewest, 120000).size() == 1);
  }
}

TEST_CASE("Rows and unchanged bytes are reported again to a restarted agent") {
  for (const bool memfd : {false, true}) {
    Host host(memfd);
    std::vector<StridedRange> batches{StridedRange::Plain({0, 40960})};
    for (uint64_t row = 0; row < 400; row += 100) batches.push_back({40960 + row * 100, 50, 100, 100});
    batches.push_back({41010, 50, 400, 100});
    batches.push_back(StridedRange::Plain({80960, 39040}));
    const auto rank = host.ConnectWith(batches);
    std::byte* const first = Begin(*rank, 1);
    std::memset(first, 1, 120000);
    for (uint32_t batch = 0; batch < batches.size(); ++batch) REQUIRE(rank->BatchesDone({&batch, 1}).ok());
    REQUIRE(rank->Commit().ok());
    host.Await(1);
    std::byte* const data = Begin(*rank, 2);
    const size_t slot = rank->slot();
    std::memset(data, 1, 120000);
    ReportUnchanged(*rank, {0, 40960});
    data[4] = std::byte{9};  // wrong on purpose: it shows whether the block is read
    for (size_t i = 1; i <= 4; ++i) WriteRows(*rank, data, batches[i], 2);
    host.Restart();
    WriteRows(*rank, data, {41010, 50, 400, 100}, 3);
    Write(*rank, data, {80960, 39040}, 4);
    CHECK(rank->slot() == slot);
    REQUIRE(rank->Commit().ok());
    Bytes expected(data, data + 120000);
    expected[4] = std::byte{1};
    CHECK(HasBytes(host.Await(2), expected));
  }
}

TEST_CASE("A restarted agent that dropped the version before reads what is reported as unchanged") {
  Host host;
  const auto rank = host.Connect();
  host.Publish(*rank, 1, 1);
  std::byte* const base = host.Publish(*rank, 2, 1);
  std::byte* const data = Begin(*rank, 3);
  std::memset(data, 1, 120000);
  ReportUnchanged(*rank, {0, 60000});
  data[4] = std::byte{9};  // wrong on purpose: it shows whether the block is read
  host.Stop();
  base[77] ^= std::byte{1};
  host.Start();
  Write(*rank, data, {60000, 60000}, 3);
  REQUIRE(rank->Commit().ok());
  CHECK(HasBytes(host.Await(3), Bytes(data, data + 120000)));
  CHECK(UseFirstBlock(host.run(), 2) == ErrorCode::kState);
}

TEST_CASE("The number of a version that a restarted agent had to drop is never given to other bytes") {
  for (const bool memfd : {false, true}) {
    Host host(memfd);
    const auto rank = host.Connect();
    const FailsWith used_up(ErrorCode::kAborted, "version 2 was committed once", "publish a newer version");
    host.Publish(*rank, 1, 1);
    std::byte* const data = host.Publish(*rank, 2, 2);
    host.Stop();
    data[77] ^= std::byte{1};
    host.Start();
    CHECK_THAT(rank->Begin(2), used_up);
    host.Restart();
    CHECK_THAT(rank->Begin(2), used_up);
    REQUIRE(rank->Begin(3).ok());
    host.Restart();
    (void)rank->Abort("on purpose");  // of which this agent knows nothing
    CHECK_THAT(rank->Begin(2), used_up);
    host.Await(1);
    host.Publish(*rank, 3, 3);
    CHECK(FirstByte(host.run(), 3) == std::byte{3});
  }
}

TEST_CASE("A rank that finds its version aborted when it reports to a restarted agent is told so, and why, at once") {
  Host host;
  const auto zero = host.Connect(0, 2);
  const auto one = host.Connect(1, 2);
  std::byte* const data = Begin(*zero, 1);
  REQUIRE(one->Begin(1).ok());
  host.Restart();
  Write(*one, data, {80000, 40000}, 1);
  REQUIRE(one->Abort("out of paper").ok());
  std::memset(data, 1, 80000);
  CHECK_THAT(zero->BatchesDone(BatchesOf(*zero, {0, 80000})),
             FailsWith(ErrorCode::kAborted, "rank 1 aborted version 1: out of paper"));
  CHECK_FALSE(zero->writing());
  PublishPart(*zero, 2, {0, 80000});
  PublishPart(*one, 2, {80000, 40000});
  host.Await(2);
}

TEST_CASE("A commit that cannot reach the agent fails, and the next version works once it is back") {
  Host host;
  auto options = host.Options();
  options.reconnect_timeout = milliseconds(100);
  auto rank = *client::RankClient::Open(options);
  host.Publish(*rank, 1, 1);
  std::byte* const data = Begin(*rank, 2);
  Write(*rank, data, {0, 120000}, 2);
  host.Stop();
  CHECK_THAT(rank->Commit(), FailsWith(ErrorCode::kUnavailable, "could not reconnect"));
  host.Start();
  host.Publish(*rank, 3, 3);
}

TEST_CASE("A rank that waits while its agent is restarted waits on at the new one") {
  Host host;
  const auto zero = host.Connect(0, 2);
  const auto one = host.Connect(1, 2);
  PublishPart(*zero, 1, {0, 80000});
  std::atomic<bool> begun{false};
  std::thread waiting([&] { begun = zero->Begin(2).ok(); });
  std::this_thread::sleep_for(milliseconds(50));
  host.Restart();
  PublishPart(*one, 1, {80000, 40000});
  waiting.join();
  CHECK(begun);
  host.Await(1);
}

TEST_CASE("A run that ended frees its memory although a pull still refers to it") {
  Host host;
  auto first = host.Connect();
  host.Publish(*first, 1, 1);
  const auto held = host.shared_run();
  first.reset();
  const auto second = host.Connect();
  CHECK(UseFirstBlock(*held, 1) == ErrorCode::kState);
  std::ifstream maps("/proc/self/maps");
  std::string text(std::istreambuf_iterator<char>(maps), {});
  CHECK(text.find(ToHex(held->run())) == std::string::npos);
}

TEST_CASE("A new run that has no room leaves the old one served") {
  Host host;
  auto first = host.Connect();
  host.Publish(*first, 1, 1);
  first.reset();
  auto options = host.Options();
  options.layout = *model::ModelLayout::Create({{"huge", model::DType::kU8, {uint64_t{1} << 36}, 0}});
  const StridedRange all = StridedRange::Plain({0, uint64_t{1} << 36});
  options.share = {};
  options.share.Add({&all, 1});
  CHECK_THAT(client::RankClient::Open(options), FailsWith(ErrorCode::kResourceExhausted, "its two slots need"));
  CHECK(FirstByte(host.run(), 1) == std::byte{1});
}

TEST_CASE("What lies in the segment directory and is not a run is left alone") {
  Host host;
  const std::string mine = host.directory() + "/segments/replicas";
  const std::string damaged = host.directory() + "/segments/actor." + std::string(32, 'a');
  host.Stop();
  REQUIRE(os::MakeDirs(mine).ok());
  REQUIRE(os::MakeDirs(damaged).ok());
  host.Start();
  CHECK(os::CheckWritableDir(mine).ok());
  CHECK_THAT(os::CheckWritableDir(damaged), FailsWith(ErrorCode::kNotFound, damaged));
}

TEST_CASE("Of two runs of a model none is chosen by a clock, and none is lost") {
  Host host;
  const std::string segments = host.directory() + "/segments";
  auto rank = host.Connect();
  host.Publish(*rank, 1, 1);
  const std::string run = segments + "/actor." + ToHex(host.run().run());
  const std::string copy = host.directory() + "/copy";
  host.Stop();
  std::filesystem::copy(run, copy, std::filesystem::copy_options::recursive);
  host.Start();
  rank.reset();
  rank = host.Connect();  // another trainer: the run before ends
  CHECK_FALSE(std::filesystem::exists(run));
  host.Publish(*rank, 1, 2);
  const std::string next = segments + "/actor." + ToHex(host.run().run());
  host.Stop();
  std::filesystem::rename(copy, run);
  {
    const auto home = SegmentHome::Create(segments, false);
    REQUIRE(home.ok());
    CHECK_THAT((*home)->FindAll(), FailsWith(ErrorCode::kState, "model actor has two runs", run, next, "move one"));
    CHECK(std::filesystem::exists(run));
    CHECK(std::filesystem::exists(next));
  }
  SECTION("One that was being removed when the agent died is none") {
    std::filesystem::rename(run, run + ".ended");
    host.Start();
    CHECK(FirstByte(host.run(), 1) == std::byte{2});
    CHECK_FALSE(std::filesystem::exists(run + ".ended"));
  }
  SECTION("The one that stays is served, and the next trainer's takes the place of all") {
    std::filesystem::rename(next, copy);
    host.Start();
    CHECK(FirstByte(host.run(), 1) == std::byte{1});
    std::filesystem::rename(copy, next);
    rank.reset();
    rank = host.Connect();
    CHECK_FALSE(std::filesystem::exists(run));
    CHECK_FALSE(std::filesystem::exists(next));
  }
}

TEST_CASE("A segment directory that others may write to is refused") {
  char name[] = "/dev/shm/lockstep-open-XXXXXX";
  const std::string directory = mkdtemp(name);
  REQUIRE(chmod(directory.c_str(), 0777) == 0);
  CHECK_THAT(SegmentHome::Create(directory, false),
             FailsWith(ErrorCode::kPermission, "--segment-dir: directory " + directory));
  CHECK(os::RemoveTree(directory).ok());
}

TEST_CASE("A committed slot whose bytes changed while the agent was away is dropped") {
  Host host;
  const auto rank = host.Connect();
  host.Publish(*rank, 1, 1);
  std::byte* const data = host.Publish(*rank, 2, 2);
  host.Stop();
  data[77] ^= std::byte{1};
  host.Start();
  host.Await(1);
}

TEST_CASE("Buffers that a rank returns and could cut, to kill the agent, are refused; its own files are not") {
  const auto home = SegmentHome::Create("", true);
  REQUIRE(home.ok());
  const auto made = (*home)->Make("actor", RandomId<RunId>(), *Layout(), 1);
  REQUIRE(made.ok());
  const auto returned = [&] {
    std::vector<os::UniqueFd> fds;
    for (const int fd : made->buffer->fds()) fds.emplace_back(dup(fd));
    return fds;
  };
  CHECK((*home)->Adopt(returned()).ok());
  std::vector<os::UniqueFd> fds = returned();
  fds[2] = os::UniqueFd(memfd_create("slot", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(ftruncate(fds[2].get(), static_cast<off_t>(made->buffer->image_bytes())) == 0);
  CHECK_THAT((*home)->Adopt(std::move(fds)), FailsWith(ErrorCode::kBadData, "may be cut while it is mapped"));
}

TEST_CASE("Two agents cannot share a segment directory") {
  Host host;
  CHECK_THAT(SegmentHome::Create(host.directory() + "/segments", false),
             FailsWith(ErrorCode::kUnavailable, host.directory() + "/segments"));
}

TEST_CASE("A run that is not held, or another model's layout, is refused with what to do") {
  Host host;
  auto options = host.Options();
  options.connect_timeout = milliseconds(1000);  // it is tried again until then
  options.run = RandomId<RunId>();
  CHECK_THAT(client::RankClient::Open(options), FailsWith(ErrorCode::kNotFound, "start a new one"));
  const auto zero = host.Connect(0, 2);
  auto other = host.Options(1, 2);
  other.layout = *model::ModelLayout::Create({{"other", model::DType::kU8, {9}, 0}});
  CHECK_THAT(client::RankClient::Open(other), FailsWith(ErrorCode::kState, "another trainer"));
  other = host.Options(1, 2);
  other.run = zero->run();
  other.ranks = 3;
  CHECK_THAT(client::RankClient::Open(other), FailsWith(ErrorCode::kState, "number of ranks"));
}

}  // namespace
}  // namespace lockstep::run
