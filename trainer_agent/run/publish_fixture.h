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
#include <vector>

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

// A share of `range`, with a batch from each of these bytes to the next.
inline wire::Share ShareOf(ByteRange range) {
  static constexpr uint64_t kCuts[] = {0, 4096, 40960, 50000, 60000, 80000, 80960, 90000, 120000};
  wire::Share share;
  for (size_t i = 0; i + 1 < std::size(kCuts); ++i) {
    const StridedRange batch = StridedRange::Plain({kCuts[i], kCuts[i + 1] - kCuts[i]});
    if (kCuts[i] >= range.offset && kCuts[i + 1] <= range.end()) share.Add({&batch, 1});
  }
  return share;
}

// The batches of the rank's share that make up `range`.
inline std::vector<uint32_t> BatchesOf(const client::RankClient& rank, ByteRange range) {
  std::vector<uint32_t> batches;
  uint64_t bytes = 0;
  for (uint32_t batch = 0; batch < rank.share().batch_ends.size(); ++batch) {
    const StridedRange& first = rank.share().RangesOf(batch)[0];
    if (first.rows > 1 || first.offset < range.offset || first.offset + first.row_bytes > range.end()) continue;
    batches.push_back(batch);
    bytes += first.row_bytes;
  }
  REQUIRE(bytes == range.bytes);
  return batches;
}

// Fills [offset, offset + bytes) with `value` and reports it.
inline void Write(client::RankClient& rank, std::byte* data, ByteRange range, int value) {
  std::memset(data + range.offset, value, range.bytes);
  REQUIRE(rank.BatchesDone(BatchesOf(rank, range)).ok());
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
            .share = ShareOf(ranks == 1  ? ByteRange{0, 120000}
                             : rank == 0 ? ByteRange{0, 80000}
                                         : ByteRange{80000, 40000}),
            .connect_timeout = milliseconds(30'000),
            .reconnect_timeout = milliseconds(30'000)};
  }
  std::unique_ptr<client::RankClient> Connect(uint32_t rank = 0, uint32_t ranks = 1) const {
    return Connect(Options(rank, ranks));
  }
  // A rank that writes each of `batches`, and nothing else.
  std::unique_ptr<client::RankClient> ConnectWith(const std::vector<StridedRange>& batches, uint32_t rank = 0,
                                                  uint32_t ranks = 1) const {
    client::RankOptions options = Options(rank, ranks);
    options.share = {};
    for (const StridedRange& batch : batches) options.share.Add({&batch, 1});
    return Connect(options);
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
  ModelRegistry& registry() const { return *registry_; }
  std::shared_ptr<ServedRun> shared_run() const { return catalog_->Find("actor"); }
  const telemetry::Timeline& timeline() const { return timeline_; }
  Result<ModelRegistry::DroppedRun> Drop() { return registry_->Drop("actor"); }
  uint32_t connected() const { return registry_->Snapshot().at(0).ranks_connected; }
  uint64_t aborted() const { return registry_->Snapshot().at(0).publisher->status().versions_aborted; }

  static std::unique_ptr<client::RankClient> Connect(client::RankOptions options) {
    auto client = client::RankClient::Open(std::move(options));
    INFO(client.status().ToString());
    REQUIRE(client.ok());
    return *std::move(client);
  }

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
  REQUIRE(rank.Unchanged(BatchesOf(rank, range)).ok());
}

// Writes that part of a version, filled with its number, and commits it.
inline void PublishPart(client::RankClient& rank, Version version, ByteRange part) {
  Write(rank, Begin(rank, version), part, static_cast<int>(version));
  REQUIRE(rank.Commit().ok());
}

// Fills the columns of `range`, which is a batch, with `value` and reports them.
inline void WriteRows(client::RankClient& rank, std::byte* data, const StridedRange& range, int value) {
  for (uint64_t row = 0; row < range.rows; ++row) {
    std::memset(data + range.offset + row * range.pitch, value, range.row_bytes);
  }
  for (uint32_t batch = 0; batch < rank.share().batch_ends.size(); ++batch) {
    if (rank.share().RangesOf(batch)[0] != range) continue;
    REQUIRE(rank.BatchesDone({&batch, 1}).ok());
    return;
  }
  FAIL("no batch of the share");
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
