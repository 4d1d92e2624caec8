// The publish side as its ranks see it: real unix sockets, real segments, several ranks, restarts.
#include <sys/stat.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "common/os/file.h"
#include "trainer_agent/buffer/rank_client.h"
#include "trainer_agent/publish/rank_server.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

std::shared_ptr<const ModelLayout> Layout() {
  return *ModelLayout::Create({{"first", DType::kBF16, {40000}, 0}, {"second", DType::kBF16, {20000}, 80000}});
}

// An agent's publish side in a directory that outlives it.
class Host {
 public:
  explicit Host(bool memfd = false) : memfd_(memfd) { Start(); }
  ~Host() {
    Stop();
    CHECK(RemoveTree(directory_).ok());
  }

  void Start() {
    pool_ = std::make_unique<WorkerPool>(2);
    fold_pool_ = std::make_unique<WorkerPool>(1);
    catalog_ = std::make_unique<VersionCatalog>();
    auto home = SegmentHome::Create(directory_ + "/segments", memfd_);
    REQUIRE(home.ok());
    home_ = *std::move(home);
    registry_ = std::make_unique<ModelRegistry>(
        home_.get(), RegistryOptions{.block_bytes = 4096, .fold_pool = fold_pool_.get()}, pool_.get(), catalog_.get());
    registry_->Recover();
    auto server = RankServer::Start(socket(), registry_.get());
    REQUIRE(server.ok());
    server_ = *std::move(server);
  }
  void Stop() {
    if (registry_ != nullptr) registry_->Stop();
    server_.reset();
    registry_.reset();
    catalog_.reset();
    home_.reset();
    pool_.reset();
    fold_pool_.reset();
  }

  std::string socket() const { return directory_ + "/export.sock"; }
  const std::string& directory() const { return directory_; }

  RankOptions Options(uint32_t rank = 0, uint32_t ranks = 1) const {
    return {.socket_path = socket(),
            .model = "actor",
            .layout = Layout(),
            .rank = rank,
            .ranks = ranks,
            .connect_timeout = milliseconds(2000),
            .reconnect_timeout = milliseconds(5000)};
  }
  std::unique_ptr<RankClient> Connect(uint32_t rank = 0, uint32_t ranks = 1) const {
    auto client = RankClient::Open(Options(rank, ranks));
    REQUIRE(client.ok());
    return *std::move(client);
  }

  // The newest served version, once it is `version`.
  ServedVersion Await(Version version) const {
    const auto newest_is = [&] {
      const auto run = catalog_->Find("actor");
      return run != nullptr && run->Newest() && run->Newest()->manifest->held.version == version;
    };
    for (int i = 0; i < 500 && !newest_is(); ++i) std::this_thread::sleep_for(milliseconds(10));
    REQUIRE(newest_is());
    return *catalog_->Find("actor")->Newest();
  }
  ServedRun& run() const { return *catalog_->Find("actor"); }
  std::shared_ptr<ServedRun> shared_run() const { return catalog_->Find("actor"); }
  bool disconnected() const { return registry_->Snapshot().at(0).ranks_connected == 0; }
  uint64_t aborted() const { return registry_->Snapshot().at(0).publisher->status().versions_aborted; }

 private:
  const bool memfd_;
  const std::string directory_ = [] {
    char name[] = "/dev/shm/lockstep-publish-XXXXXX";
    return std::string(mkdtemp(name));
  }();
  std::unique_ptr<WorkerPool> pool_;
  std::unique_ptr<WorkerPool> fold_pool_;
  std::unique_ptr<VersionCatalog> catalog_;
  std::unique_ptr<SegmentHome> home_;
  std::unique_ptr<ModelRegistry> registry_;
  std::unique_ptr<RankServer> server_;
};

// Fills [offset, offset + bytes) with `value` and tells it.
void Write(RankClient& rank, std::byte* data, ByteRange range, int value) {
  std::memset(data + range.offset, value, range.bytes);
  REQUIRE(rank.RangesDone({&range, 1}).ok());
}

void Publish(RankClient& rank, Version version, int value) {
  const auto data = rank.Begin(version);
  REQUIRE(data.ok());
  Write(rank, *data, {0, 120000}, value);
  REQUIRE(rank.Commit().ok());
}

std::byte FirstByte(ServedRun& run, Version version) {
  std::byte block[4096];
  REQUIRE(run.ReadBlock(version, true, 0, block).ok());
  return block[0];
}

TEST_CASE("Published versions are served with their bytes, hashes and deltas") {
  Host host;
  const auto rank = host.Connect();
  Publish(*rank, 1, 1);
  host.Await(1);
  Publish(*rank, 5, 2);
  const ServedVersion served = host.Await(5);
  CHECK(FirstByte(host.run(), 5) == std::byte{2});
  CHECK(served.manifest->block_hashes.size() == 30);
  const DeltaRoute route = host.run().deltas().RouteFrom(1, 120000);
  REQUIRE(route.steps.size() == 1);
  CHECK(route.steps[0]->header().target_digest == served.manifest->digest);
  CHECK(route.changed_elements() == 60000);
}

TEST_CASE("A version commits when all of its ranks have, and ranks may run one version ahead") {
  Host host;
  const auto zero = host.Connect(0, 2);
  const auto one = host.Connect(1, 2);
  CHECK(zero->run() == one->run());
  for (Version version = 1; version <= 5; ++version) {
    const auto data = zero->Begin(version);
    REQUIRE(data.ok());
    Write(*zero, *data, {0, 80000}, static_cast<int>(version));
    REQUIRE(zero->Commit().ok());
    if (version == 1) CHECK_FALSE(host.run().Newest());
    const auto other = one->Begin(version);
    REQUIRE(other.ok());
    Write(*one, *other, {80000, 40000}, static_cast<int>(version));
    REQUIRE(one->Commit().ok());
    host.Await(version);
  }
}

TEST_CASE("Versions only increase, and a version begun is not begun again") {
  Host host;
  const auto rank = host.Connect();
  Publish(*rank, 3, 1);
  for (const Version version : {0, 1, 3}) CHECK(rank->Begin(version).status().code() == ErrorCode::kState);
  REQUIRE(rank->Begin(4).ok());
  CHECK(rank->Begin(5).status().message().find("still being written") != std::string::npos);
}

TEST_CASE("Bytes that nobody wrote are an error that names their tensor, and the next version works") {
  Host host;
  const auto rank = host.Connect();
  const auto data = rank->Begin(1);
  REQUIRE(data.ok());
  Write(*rank, *data, {0, 90000}, 1);
  const Status status = rank->Commit();
  CHECK(status.code() == ErrorCode::kBadData);
  CHECK(status.message().find("\"second\"") != std::string::npos);
  CHECK(host.aborted() == 1);
  Publish(*rank, 1, 7);
  host.Await(1);
  CHECK(FirstByte(host.run(), 1) == std::byte{7});
}

TEST_CASE("A byte told twice ends the version, told at commit") {
  Host host;
  const auto rank = host.Connect();
  const auto data = rank->Begin(1);
  REQUIRE(data.ok());
  Write(*rank, *data, {0, 120000}, 1);
  Write(*rank, *data, {100, 2}, 1);
  CHECK(rank->Commit().message().find("told twice") != std::string::npos);
  Publish(*rank, 2, 7);
  host.Await(2);
}

TEST_CASE("A rank that vanishes ends the version for all, and what was served stays served") {
  Host host;
  auto zero = host.Connect(0, 2);
  auto one = host.Connect(1, 2);
  for (RankClient* rank : {zero.get(), one.get()}) {
    const auto data = rank->Begin(1);
    REQUIRE(data.ok());
    Write(*rank, *data, rank == zero.get() ? ByteRange{0, 80000} : ByteRange{80000, 40000}, 1);
    REQUIRE(rank->Commit().ok());
  }
  host.Await(1);
  const auto data = zero->Begin(2);
  REQUIRE(data.ok());
  Write(*zero, *data, {0, 80000}, 2);
  REQUIRE(one->Begin(2).ok());
  one.reset();
  for (int i = 0; i < 500 && host.aborted() == 0; ++i) std::this_thread::sleep_for(milliseconds(10));
  const Status status = zero->Commit();
  CHECK(status.code() == ErrorCode::kAborted);
  CHECK(status.message().find("rank 1 vanished") != std::string::npos);
  CHECK(FirstByte(host.run(), 1) == std::byte{1});
}

TEST_CASE("A rank that goes on without a version ends it instead of waiting for itself") {
  Host host;
  const auto zero = host.Connect(0, 2);
  const auto one = host.Connect(1, 2);
  REQUIRE(zero->Begin(1).ok());
  REQUIRE(one->Begin(2).ok());
  CHECK(zero->Commit().code() == ErrorCode::kAborted);
}

TEST_CASE("Abort gives the version up and the next begin works") {
  Host host;
  const auto rank = host.Connect();
  REQUIRE(rank->Begin(1).ok());
  REQUIRE(rank->Abort().ok());
  Publish(*rank, 1, 3);
  host.Await(1);
}

TEST_CASE("A restarted trainer starts a new run; a second one at the same time is refused") {
  Host host;
  auto first = host.Connect();
  Publish(*first, 9, 1);
  host.Await(9);
  const auto refused = RankClient::Open(host.Options());
  CHECK(refused.status().message().find("connected already") != std::string::npos);
  const RunId run = first->run();
  first.reset();
  std::unique_ptr<RankClient> second;
  for (int i = 0; i < 100 && second == nullptr; ++i) {
    auto opened = RankClient::Open(host.Options());
    if (opened.ok()) second = *std::move(opened);
    std::this_thread::sleep_for(milliseconds(10));
  }
  REQUIRE(second != nullptr);
  CHECK(second->run() != run);
  CHECK_FALSE(host.run().Newest());
  Publish(*second, 1, 2);
  host.Await(1);
}

TEST_CASE("An agent that is restarted between versions goes on in the same run, deltas and all") {
  for (const bool memfd : {false, true}) {
    Host host(memfd);
    const auto rank = host.Connect();
    for (Version version = 1; version <= 3; ++version) {
      Publish(*rank, version, static_cast<int>(version));
      host.Await(version);
    }
    host.Stop();
    host.Start();
    if (!memfd) {
      host.Await(3);
      CHECK(host.run().deltas().RouteFrom(1, 1 << 20).folded);
    }
    Publish(*rank, 4, 4);
    host.Await(4);
    CHECK(host.run().run() == rank->run());
    CHECK(host.run().deltas().RouteFrom(3, 120000).steps.size() == 1);
    CHECK(host.run().deltas().RouteFrom(2, 120000).steps.size() == 1);
  }
}

TEST_CASE("An agent that is restarted in the middle of a version is told it again") {
  for (const bool memfd : {false, true}) {
    Host host(memfd);
    const auto rank = host.Connect();
    Publish(*rank, 1, 1);
    host.Await(1);
    const auto data = rank->Begin(2);
    REQUIRE(data.ok());
    Write(*rank, *data, {0, 50000}, 2);
    host.Stop();
    std::memset(*data + 50000, 2, 70000);
    host.Start();
    const ByteRange rest{50000, 70000};
    REQUIRE(rank->RangesDone({&rest, 1}).ok());
    REQUIRE(rank->Commit().ok());
    host.Await(2);
    CHECK(FirstByte(host.run(), 2) == std::byte{2});
    CHECK(host.run().deltas().RouteFrom(1, 120000).steps.size() == 1);
  }
}

TEST_CASE("A commit that cannot reach the agent fails, and the next version works once it is back") {
  Host host;
  auto options = host.Options();
  options.reconnect_timeout = milliseconds(100);
  auto rank = *RankClient::Open(options);
  Publish(*rank, 1, 1);
  host.Await(1);
  const auto data = rank->Begin(2);
  REQUIRE(data.ok());
  Write(*rank, *data, {0, 120000}, 2);
  host.Stop();
  CHECK(rank->Commit().message().find("could not reconnect") != std::string::npos);
  host.Start();
  Publish(*rank, 3, 3);
  host.Await(3);
}

TEST_CASE("A call that timed out costs its version, and the connection is in step again afterwards") {
  Host host;
  auto options = host.Options(0, 2);
  options.call_timeout = milliseconds(200);
  auto zero = *RankClient::Open(options);
  const auto one = host.Connect(1, 2);
  const auto write = [](RankClient& rank, Version version, ByteRange range) {
    const auto data = rank.Begin(version);
    REQUIRE(data.ok());
    Write(rank, *data, range, static_cast<int>(version));
    REQUIRE(rank.Commit().ok());
  };
  write(*zero, 1, {0, 80000});
  CHECK(zero->Begin(2).status().code() == ErrorCode::kDeadline);  // rank 1 is late with version 1
  write(*one, 1, {80000, 40000});
  host.Await(1);
  write(*zero, 2, {0, 80000});
  write(*one, 2, {80000, 40000});
  host.Await(2);
}

TEST_CASE("A rank that waits while its agent is restarted goes on waiting at the new one") {
  Host host;
  const auto zero = host.Connect(0, 2);
  const auto one = host.Connect(1, 2);
  const auto data = zero->Begin(1);
  REQUIRE(data.ok());
  Write(*zero, *data, {0, 80000}, 1);
  REQUIRE(zero->Commit().ok());
  std::atomic<bool> begun{false};
  std::thread waiting([&] { begun = zero->Begin(2).ok(); });
  std::this_thread::sleep_for(milliseconds(50));
  host.Stop();
  host.Start();
  const auto other = one->Begin(1);
  REQUIRE(other.ok());
  Write(*one, *other, {80000, 40000}, 1);
  REQUIRE(one->Commit().ok());
  waiting.join();
  CHECK(begun);
  host.Await(1);
}

TEST_CASE("Versions above the limit are refused") {
  Host host;
  const auto rank = host.Connect();
  CHECK(rank->Begin(kMaxVersion + 1).status().code() == ErrorCode::kBadData);
  Publish(*rank, kMaxVersion, 1);
  host.Await(kMaxVersion);
}

TEST_CASE("A run that ended gives its memory back although a pull still holds on to it") {
  Host host;
  auto first = host.Connect();
  Publish(*first, 1, 1);
  host.Await(1);
  const auto held = host.shared_run();
  first.reset();
  while (!host.disconnected()) std::this_thread::sleep_for(milliseconds(1));
  const auto second = host.Connect();
  std::byte block[4096];
  CHECK(held->ReadBlock(1, true, 0, block).status().code() == ErrorCode::kState);
  std::ifstream maps("/proc/self/maps");
  std::string text(std::istreambuf_iterator<char>(maps), {});
  CHECK(text.find(ToHex(held->run())) == std::string::npos);
}

TEST_CASE("A new run that has no room leaves the old one served") {
  Host host;
  auto first = host.Connect();
  Publish(*first, 1, 1);
  host.Await(1);
  first.reset();
  while (!host.disconnected()) std::this_thread::sleep_for(milliseconds(1));
  auto options = host.Options();
  options.layout = *ModelLayout::Create({{"huge", DType::kU8, {uint64_t{1} << 36}, 0}});
  CHECK(RankClient::Open(options).status().code() == ErrorCode::kResourceExhausted);
  CHECK(FirstByte(host.run(), 1) == std::byte{1});
}

TEST_CASE("What lies in the segment directory and is not a run is left alone") {
  Host host;
  const std::string mine = host.directory() + "/segments/replicas";
  const std::string damaged = host.directory() + "/segments/actor." + std::string(32, 'a');
  host.Stop();
  REQUIRE(MakeDirs(mine).ok());
  REQUIRE(MakeDirs(damaged).ok());
  host.Start();
  CHECK(CheckWritableDir(mine).ok());
  CHECK_FALSE(CheckWritableDir(damaged).ok());
}

TEST_CASE("A segment directory that others may write to is refused") {
  char name[] = "/dev/shm/lockstep-open-XXXXXX";
  const std::string directory = mkdtemp(name);
  REQUIRE(chmod(directory.c_str(), 0777) == 0);
  CHECK(SegmentHome::Create(directory, false).status().code() == ErrorCode::kPermission);
  CHECK(RemoveTree(directory).ok());
}

TEST_CASE("A committed half whose bytes changed while the agent was away is dropped") {
  Host host;
  const auto rank = host.Connect();
  Publish(*rank, 1, 1);
  host.Await(1);
  const auto data = rank->Begin(2);
  REQUIRE(data.ok());
  Write(*rank, *data, {0, 120000}, 2);
  REQUIRE(rank->Commit().ok());
  host.Await(2);
  host.Stop();
  (*data)[77] ^= std::byte{1};
  host.Start();
  host.Await(1);
}

TEST_CASE("Foreign bytes on the socket are refused and disturb nobody") {
  Host host;
  const auto rank = host.Connect();
  for (const std::string& garbage : {std::string(64, 'x'), std::string(16, '\0')}) {
    auto stranger = UnixConnect(host.socket(), milliseconds(1000));
    REQUIRE(stranger.ok());
    REQUIRE(stranger->Send(std::as_bytes(std::span(garbage)), {}, milliseconds(1000)).ok());
    const auto answer = ReceiveMessage(*stranger, milliseconds(5000));
    REQUIRE(answer.ok());
    CHECK(DecodeError(answer->body).code() == ErrorCode::kProtocol);
  }
  Publish(*rank, 1, 1);
  host.Await(1);
}

TEST_CASE("Two agents cannot share a segment directory") {
  Host host;
  CHECK(SegmentHome::Create(host.directory() + "/segments", false).status().code() == ErrorCode::kUnavailable);
}

TEST_CASE("A run that nobody holds, or another model's layout, is refused with what to do") {
  Host host;
  auto options = host.Options();
  options.run = RandomId<RunId>();
  CHECK(RankClient::Open(options).status().message().find("start a new one") != std::string::npos);
  const auto zero = host.Connect(0, 2);
  auto other = host.Options(1, 2);
  other.layout = *ModelLayout::Create({{"other", DType::kU8, {9}, 0}});
  CHECK(RankClient::Open(other).status().message().find("another trainer") != std::string::npos);
  other = host.Options(1, 2);
  other.run = zero->run();
  other.ranks = 3;
  CHECK(RankClient::Open(other).status().message().find("number of ranks") != std::string::npos);
}

}  // namespace
}  // namespace lockstep
