// For tests: a run with made-up blocks, and its pull table. Each byte of block b of version v is v + b.
#pragma once

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "common/base/eventually.h"
#include "common/base/worker_pool.h"
#include "common/os/file.h"
#include "common/os/segment.h"
#include "common/os/temp_dir.h"
#include "trainer_agent/run/store_fixture.h"
#include "trainer_agent/serve/pull_table.h"

namespace lockstep::serve {

inline constexpr uint32_t kBlocks = 40;
inline constexpr uint32_t kBlock = 4096;

inline std::shared_ptr<const model::ModelLayout> Layout() {
  return run::LayoutOf(kBlocks * kBlock / 2);
}

inline Bytes BlockOf(Version version, BlockIndex block) {
  return Bytes(kBlock, static_cast<std::byte>(version + block));
}

// Versions before `oldest` are gone. Each version's memory is a segment of its own, in which a test may write.
struct MadeUpBlocks : run::BlockReader {
  static constexpr uint64_t kDataOffset = 128;

  std::atomic<Version> oldest{1};
  std::atomic<int> lent{0};  // uses of bytes in progress
  std::mutex mutex;
  std::map<Version, os::MappedSegment> memory;

  Status UseBytes(Version version, const ByteRange& range, const std::function<void(ByteView)>& use) override {
    if (version < oldest) return {ErrorCode::kState, "gone"};
    ++lent;
    Bytes bytes;
    for (uint64_t block = range.offset / kBlock; block * kBlock < range.end(); ++block) {
      AppendBytes(bytes, BlockOf(version, static_cast<BlockIndex>(block)));
    }
    use(bytes);
    std::fill(bytes.begin(), bytes.end(), std::byte{0xee});  // a late reader finds what it was not lent
    --lent;
    return OkStatus();
  }
  Result<run::VersionFile> OpenFile(Version version) override {
    if (version < oldest) return Status(ErrorCode::kState, "gone");
    LS_ASSIGN_OR_RETURN(os::UniqueFd file, os::ReopenReadOnly(MemoryOf(version).fd(), "made-up memory"));
    return run::VersionFile{std::move(file), kDataOffset};
  }
  os::MappedSegment& MemoryOf(Version version) {
    std::lock_guard lock(mutex);
    os::MappedSegment& segment = memory[version];
    if (segment.valid()) return segment;
    segment = *os::CreateMemfdSegment("made-up", kDataOffset + kBlocks * kBlock);
    for (BlockIndex block = 0; block < kBlocks; ++block) {
      const Bytes bytes = BlockOf(version, block);
      std::copy(bytes.begin(), bytes.end(), DataOf(segment, block));
    }
    return segment;
  }
  static std::byte* DataOf(os::MappedSegment& segment, BlockIndex block) {
    return segment.data() + kDataOffset + block * kBlock;
  }
};

struct Served {
  const uint64_t retain_bytes;
  os::TempDir deltas{"/dev/shm"};
  WorkerPool pool{2};
  std::shared_ptr<const model::ModelLayout> layout = Layout();
  std::shared_ptr<MadeUpBlocks> blocks = std::make_shared<MadeUpBlocks>();
  std::shared_ptr<run::ServedRun> run =
      std::make_shared<run::ServedRun>("actor", RandomId<RunId>(), layout, blocks,
                                       run::StoreOptions{.directory = deltas.path(), .retain_bytes = retain_bytes});
  run::VersionCatalog catalog;
  PullTable pulls{&catalog, {.max_pulls = 3, .max_lanes = 3}};

  explicit Served(uint64_t retain_bytes = 2ull << 30) : retain_bytes(retain_bytes) {
    catalog.Open(run);
    Publish(1);
  }

  ManifestDigest Digest(Version version) const { return ManifestOf(version)->digest; }
  std::shared_ptr<model::Manifest> ManifestOf(Version version) const {
    auto manifest = std::make_shared<model::Manifest>();
    manifest->held = {run->run(), version};
    for (BlockIndex block = 0; block < kBlocks; ++block)
      manifest->block_hashes.push_back(model::BlockHash(BlockOf(version, block)));
    manifest->digest = model::ComputeManifestDigest(layout->digest(), manifest->block_hashes);
    return manifest;
  }
  // Its delta is there, and it is not.
  void Retain(Version version) {
    std::vector<payload::DeltaBlock> delta;
    for (BlockIndex block = 0; block < kBlocks; block += 2) {
      delta.push_back(run::SparseBlock(block, {.positions = {block}, .steps = {version}},
                                       model::BlockHash(BlockOf(version, block))));
    }
    std::vector<const payload::DeltaBlock*> pointers;
    for (const payload::DeltaBlock& block : delta) pointers.push_back(&block);
    REQUIRE(run->deltas()
                .Add({.run = run->run(),
                      .base = version - 1,
                      .target = version,
                      .base_digest = Digest(version - 1),
                      .target_digest = Digest(version)},
                     pointers)
                .ok());
  }
  void Publish(Version version, const std::string& label = {}) {
    if (version > 1) Retain(version);
    REQUIRE(catalog.Publish(run, {ManifestOf(version), static_cast<int64_t>(version), label}).ok());
  }
  PullRequest StandingRequest(uint32_t lanes) const {
    return {.model = "actor", .receiver = "r", .layout = layout->digest(), .lanes = lanes, .standing = true};
  }
  PullRequest Request(Version held = 0) const {
    PullRequest request{.model = "actor", .receiver = "r", .layout = layout->digest(), .lanes = 2};
    if (held != 0) {
      request.held = {run->run(), held};
      request.held_digest = Digest(held);
    }
    return request;
  }
};

}  // namespace lockstep::serve
