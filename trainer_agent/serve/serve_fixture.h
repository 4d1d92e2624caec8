// For tests: a run in a buffer of its own, and its pull table. Each byte of block b of version v is v + b.
#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include "common/base/eventually.h"
#include "common/base/worker_pool.h"
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

// Writes a version of the made-up model into `buffer`.
inline void WriteBlocks(run::DoubleBuffer& buffer, Version version) {
  run::Write(buffer, version, [&](std::byte* data) {
    for (BlockIndex block = 0; block < kBlocks; ++block) {
      std::memset(data + block * kBlock, static_cast<int>(BlockOf(version, block)[0]), kBlock);
    }
  });
}

struct Served {
  const uint64_t retain_bytes;
  os::TempDir deltas{"/dev/shm"};
  WorkerPool pool{2};
  std::shared_ptr<run::DoubleBuffer> buffer = run::BufferOf(*Layout());
  std::shared_ptr<const model::ModelLayout> layout = buffer->layout();
  std::shared_ptr<run::ServedRun> run = std::make_shared<run::ServedRun>(
      buffer, run::StoreOptions{.directory = deltas.path(), .retain_bytes = retain_bytes});
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
    WriteBlocks(*buffer, version);
    if (version > 1) Retain(version);
    REQUIRE(catalog.Publish(run, {ManifestOf(version), static_cast<int64_t>(version), label}).ok());
  }
  // A byte of a block of a version that is in memory, for tests that damage it.
  std::byte& ByteOf(Version version, BlockIndex block) const {
    return run::MemoryOf(*buffer, version)[size_t{block} * kBlock];
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
