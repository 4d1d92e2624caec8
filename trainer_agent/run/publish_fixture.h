// ModelRegistry as its ranks see it: real unix sockets, real segments, an agent that can be stopped and started
// again.
#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <latch>
#include <memory>
#include <string>

#include "common/base/eventually.h"
#include "common/os/file.h"
#include "export_plugin/client/rank_client.h"
#include "trainer_agent/run/rank_server.h"

namespace lockstep::run {

using std::chrono::milliseconds;

inline std::shared_ptr<const model::ModelLayout> Layout() {
  return *model::ModelLayout::Create(
      {{"first", model::DType::kBF16, {40000}, 0}, {"second", model::DType::kBF16, {20000}, 80000}});
}

// The data section of the slot that `version` is written into.
inline std::byte* Begin(client::RankClient& rank, Version version) {
  const auto data = rank.Begin(version);
  REQUIRE(data.ok());
  return *data;
}

// Fills [offset, offset + bytes) with `value` and reports it.
inline void Write(client::RankClient& rank, std::byte* data, ByteRange range, int value) {
  std::memset(data + range.offset, value, range.bytes);
  const StridedRange reported = StridedRange::Plain(range);
  REQUIRE(rank.RangesDone({&reported, 1}).ok());
}

// ModelRegistry and its rank server, in a directory that outlives them.
class Host {
 public:
  explicit Host(bool memfd = false) : memfd_(memfd) { Start(); }
  ~Host() {
    Stop();
    CHECK(os::RemoveTree(directory_).ok());
  }

  void Start() {
    pool_ = std::make_unique<WorkerPool>(2);
    catalog_ = std::make_unique<VersionCatalog>();
    auto home = SegmentHome::Create(directory_ + "/segments", memfd_);
    REQUIRE(home.ok());
    home_ = *std::move(home);
    registry_ =
        std::make_unique<ModelRegistry>(home_.get(), RegistryOptions{.block_bytes = 4096, .timeline = &timeline_},
                                        DiffOptions{.pool = pool_.get()}, catalog_.get());
    REQUIRE(registry_->Recover().ok());
    auto server = StartRankServer(socket(), std::nullopt, registry_.get(), nullptr);
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
  }

  void Restart() {
    Stop();
    Start();
  }

  // While it lives, nothing is compared: the threads that do are busy.
  class Standstill {
   public:
    explicit Standstill(const Host& host) {
      for (size_t i = 0; i < host.pool_->size(); ++i) host.pool_->Post([over = over_] { over->wait(); });
    }
    ~Standstill() { over_->count_down(); }

   private:
    const std::shared_ptr<std::latch> over_ = std::make_shared<std::latch>(1);
  };

  std::string socket() const { return directory_ + "/export.sock"; }
  const std::string& directory() const { return directory_; }

  client::RankOptions Options(uint32_t rank = 0, uint32_t ranks = 1) const {
    return {.socket_path = socket(),
            .model = "actor",
            .layout = Layout(),
            .rank = rank,
            .ranks = ranks,
            .connect_timeout = milliseconds(30'000),
            .reconnect_timeout = milliseconds(30'000)};
  }
  std::unique_ptr<client::RankClient> Connect(uint32_t rank = 0, uint32_t ranks = 1) const {
    auto client = client::RankClient::Open(Options(rank, ranks));
    REQUIRE(client.ok());
    return *std::move(client);
  }

  // The newest served version, once it is `version`.
  ServedVersion Await(Version version) const {
    const auto newest_is = [&] {
      const auto run = catalog_->Find("actor");
      return run != nullptr && run->Newest() && run->Newest()->manifest->held.version == version;
    };
    REQUIRE(Eventually(newest_is));
    return *catalog_->Find("actor")->Newest();
  }
  // A whole version, filled with `value`, by its only rank, until it is served. Returns where it was written.
  std::byte* Publish(client::RankClient& rank, Version version, int value) const {
    std::byte* const data = Begin(rank, version);
    Write(rank, data, {0, 120000}, value);
    REQUIRE(rank.Commit().ok());
    Await(version);
    return data;
  }
  ServedRun& run() const { return *catalog_->Find("actor"); }
  VersionCatalog& catalog() const { return *catalog_; }
  std::shared_ptr<ServedRun> shared_run() const { return catalog_->Find("actor"); }
  const telemetry::Timeline& timeline() const { return timeline_; }
  Result<ModelRegistry::DroppedRun> Drop() { return registry_->Drop("actor"); }
  uint32_t connected() const { return registry_->Snapshot().at(0).ranks_connected; }
  uint64_t aborted() const { return registry_->Snapshot().at(0).publisher->status().versions_aborted; }

 private:
  const bool memfd_;
  const std::string directory_ = [] {
    char name[] = "/dev/shm/lockstep-publish-XXXXXX";
    return std::string(mkdtemp(name));
  }();
  telemetry::Timeline timeline_;
  std::unique_ptr<WorkerPool> pool_;
  std::unique_ptr<VersionCatalog> catalog_;
  std::unique_ptr<SegmentHome> home_;
  std::unique_ptr<ModelRegistry> registry_;
  std::unique_ptr<os::UnixServer> server_;
};

inline void ReportUnchanged(client::RankClient& rank, ByteRange range) {
  const StridedRange reported = StridedRange::Plain(range);
  REQUIRE(rank.Unchanged({&reported, 1}).ok());
}

// Writes that part of a version, filled with its number, and commits it.
inline void PublishPart(client::RankClient& rank, Version version, ByteRange part) {
  Write(rank, Begin(rank, version), part, static_cast<int>(version));
  REQUIRE(rank.Commit().ok());
}

// Fills the columns of `range` with `value` and reports them.
inline void WriteRows(client::RankClient& rank, std::byte* data, const StridedRange& range, int value) {
  for (uint64_t row = 0; row < range.rows; ++row) {
    std::memset(data + range.offset + row * range.pitch, value, range.row_bytes);
  }
  REQUIRE(rank.RangesDone({&range, 1}).ok());
}

// Whether `version` is served with exactly the hashes of `bytes`.
inline bool HasBytes(const ServedVersion& served, const std::vector<std::byte>& bytes) {
  for (size_t block = 0; block < served.manifest->block_hashes.size(); ++block) {
    const size_t offset = block * 4096;
    const ByteView view = ByteView(bytes).subspan(offset, std::min<size_t>(4096, bytes.size() - offset));
    if (served.manifest->block_hashes[block] != model::BlockHash(view)) return false;
  }
  return true;
}

// How using the first block of exactly `version` goes.
inline ErrorCode UseFirstBlock(ServedRun& run, Version version) {
  return run.UseBlocks(version, true, 0, 1, [](const model::Manifest&, ByteView) {}).code();
}

inline std::byte FirstByte(ServedRun& run, Version version) {
  std::byte first{};
  REQUIRE(run.UseBlocks(version, true, 0, 1, [&](const model::Manifest&, ByteView bytes) { first = bytes[0]; }).ok());
  return first;
}

}  // namespace lockstep::run
