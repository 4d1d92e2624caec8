#include "trainer_agent/run/delta_job.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <set>

#include "common/payload/block_apply.h"

namespace lockstep::run {
namespace {

struct Versions {
  std::shared_ptr<const model::ModelLayout> layout = *model::ModelLayout::Create(
      {{"a", model::DType::kF32, {9000}, 0}, {"b", model::DType::kBF16, {30001}, 36000}}, 4096);
  Bytes base = Bytes(layout->data_bytes());
  Bytes target;
  std::mt19937_64 random{11};

  explicit Versions(double density) {
    for (std::byte& byte : base) byte = static_cast<std::byte>(random());
    target = base;
    for (std::byte& byte : target) {
      if (std::generate_canonical<double, 32>(random) < density) byte = static_cast<std::byte>(random());
    }
  }
  std::vector<BlockIndex> AllBlocks() {
    std::vector<BlockIndex> blocks(layout->block_count());
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), random);
    return blocks;
  }
  std::shared_ptr<model::Manifest> ManifestOf(const Bytes& bytes) const {
    auto manifest = std::make_shared<model::Manifest>();
    for (BlockIndex i = 0; i < layout->block_count(); ++i) {
      const ByteRange range = layout->block_range(i);
      manifest->block_hashes.push_back(model::BlockHash(ByteView(bytes).subspan(range.offset, range.bytes)));
    }
    return manifest;
  }
};

std::vector<const payload::DeltaBlock*> Pointers(
    const std::vector<std::shared_ptr<const payload::DeltaBlock>>& blocks) {
  std::vector<const payload::DeltaBlock*> pointers;
  for (const auto& block : blocks) pointers.push_back(block.get());
  return pointers;
}

TEST_CASE("The output's blocks bring the base to the target, and its hashes are the target's") {
  WorkerPool pool(2);
  for (const double density : {0.0, 0.0001, 0.01, 1.0}) {
    Versions versions(density);
    DeltaJob job(&pool, {.layout = versions.layout,
                         .target = versions.target.data(),
                         .base = versions.base.data(),
                         .base_manifest = versions.ManifestOf(versions.base)});
    for (const BlockIndex block : versions.AllBlocks()) job.BlocksReady({block});
    const DeltaOutput output = job.FinishAndWait();
    CHECK(output.block_hashes == versions.ManifestOf(versions.target)->block_hashes);
    const auto payload =
        *payload::Payload::Assemble(*versions.layout, {.base = 1, .target = 2}, Pointers(output.blocks));
    for (const payload::PayloadEntry& entry : payload->entries()) {
      const ByteRange range = versions.layout->block_range(entry.block);
      REQUIRE(entry.bytes <= range.bytes);
      const payload::EntryData data{&entry, payload->data(entry)};
      const auto hash = payload::ApplyEntries({&data, 1}, std::span(versions.base).subspan(range.offset, range.bytes));
      REQUIRE(hash.ok());
      CHECK(*hash == entry.target_hash);
    }
    CHECK(versions.base == versions.target);
  }
}

TEST_CASE("Each differing block is given away while later ones are worked on, and is the output's own") {
  WorkerPool pool(2);
  Versions versions(0.0002);
  std::mutex mutex;
  std::set<std::shared_ptr<const payload::DeltaBlock>> early;
  DeltaInput input{.layout = versions.layout,
                   .target = versions.target.data(),
                   .base = versions.base.data(),
                   .base_manifest = versions.ManifestOf(versions.base)};
  input.on_block = [&](std::shared_ptr<const payload::DeltaBlock> block) {
    std::lock_guard lock(mutex);
    early.insert(std::move(block));
  };
  DeltaJob job(&pool, input);
  job.BlocksReady(versions.AllBlocks());
  const DeltaOutput output = job.FinishAndWait();
  CHECK_FALSE(output.blocks.empty());
  CHECK(output.blocks.size() < versions.layout->block_count());
  CHECK(early == std::set(output.blocks.begin(), output.blocks.end()));
}

TEST_CASE("Raw blocks are not copied, except those given away early") {
  WorkerPool pool(2);
  Versions versions(1.0);
  const auto in_target = [&](const std::byte* byte) {
    return byte >= versions.target.data() && byte < versions.target.data() + versions.target.size();
  };
  DeltaInput input{.layout = versions.layout,
                   .target = versions.target.data(),
                   .base = versions.base.data(),
                   .base_manifest = versions.ManifestOf(versions.base)};
  std::mutex mutex;
  std::vector<std::shared_ptr<const payload::DeltaBlock>> early;
  int refusals = 0;
  const auto run = [&] {
    DeltaJob job(&pool, input);
    job.BlocksReady(versions.AllBlocks());
    return job.FinishAndWait();
  };
  const size_t blocks = versions.layout->block_count();
  for (const auto& delta : run().blocks) {
    REQUIRE(delta->codec == payload::Codec::kRaw);
    CHECK(in_target(delta->bytes().data()));
  }

  input.on_block = [&](std::shared_ptr<const payload::DeltaBlock> block) {
    std::lock_guard lock(mutex);
    block == nullptr ? static_cast<void>(++refusals) : early.push_back(std::move(block));
  };
  CHECK(run().blocks.size() == blocks);
  CHECK(early.size() == blocks);
  CHECK(refusals == 0);
  for (const auto& delta : early) {
    CHECK_FALSE(in_target(delta->bytes().data()));
    CHECK(model::BlockHash(delta->bytes()) == delta->data_hash);
  }

  early.clear();
  input.max_early_bytes = 20'000;
  const DeltaOutput output = run();
  CHECK(early.size() == 4);  // of 4096 bytes
  CHECK(refusals == 1);
  CHECK(output.blocks.size() == blocks);
  const auto lent = [](const auto& delta) { return !delta->lent.empty(); };
  CHECK(std::ranges::count_if(output.blocks, lent) == static_cast<std::ptrdiff_t>(blocks - early.size()));
}

TEST_CASE("A block that was read has the hash of its own bytes, also when the base's manifest has another") {
  WorkerPool pool(2);
  Versions versions(0);
  const auto manifest = versions.ManifestOf(versions.base);
  auto damaged = std::make_shared<model::Manifest>(*manifest);
  damaged->block_hashes[3] ^= 1;
  DeltaJob job(&pool, {.layout = versions.layout,
                       .target = versions.target.data(),
                       .base = versions.base.data(),
                       .base_manifest = damaged});
  job.BlocksReady(versions.AllBlocks());
  CHECK(job.FinishAndWait().block_hashes == manifest->block_hashes);
}

TEST_CASE("A delta that would take too much memory is dropped, and its hashes are not") {
  WorkerPool pool(2);
  Versions versions(1.0);
  DeltaJob job(&pool, {.layout = versions.layout,
                       .target = versions.target.data(),
                       .base = versions.base.data(),
                       .base_manifest = versions.ManifestOf(versions.base),
                       .max_coded_bytes = 20'000});
  job.BlocksReady(versions.AllBlocks());
  const DeltaOutput output = job.FinishAndWait();
  CHECK(output.too_dense);
  CHECK(output.blocks.empty());
  CHECK(output.block_hashes == versions.ManifestOf(versions.target)->block_hashes);
}

TEST_CASE("Blocks reported as unchanged are not read: the base's hash, and nothing in the delta") {
  WorkerPool pool(2);
  Versions versions(1.0);
  const auto base_manifest = versions.ManifestOf(versions.base);
  DeltaJob job(&pool, {.layout = versions.layout,
                       .target = versions.target.data(),
                       .base = versions.base.data(),
                       .base_manifest = base_manifest});
  auto expected = versions.ManifestOf(versions.target)->block_hashes;
  std::vector<BlockIndex> unread;
  std::vector<BlockIndex> read;
  for (const BlockIndex block : versions.AllBlocks()) (block % 3 == 0 ? unread : read).push_back(block);
  for (const BlockIndex block : unread) expected[block] = base_manifest->block_hashes[block];
  job.BlocksReady(read);
  job.BlocksUnchanged(unread);
  const DeltaOutput output = job.FinishAndWait();
  CHECK(output.block_hashes == expected);
  CHECK(output.blocks_unread == unread.size());
  CHECK(output.blocks.size() == read.size());
  for (const auto& delta : output.blocks) CHECK(delta->block % 3 != 0);
}

TEST_CASE("Without a base, blocks reported as unchanged are hashed like any others") {
  WorkerPool pool(2);
  Versions versions(0.5);
  DeltaJob job(&pool, {.layout = versions.layout, .target = versions.target.data()});
  job.BlocksUnchanged(versions.AllBlocks());
  const DeltaOutput output = job.FinishAndWait();
  CHECK(output.blocks_unread == 0);
  CHECK(output.block_hashes == versions.ManifestOf(versions.target)->block_hashes);
}

TEST_CASE("Without a base a job only hashes") {
  WorkerPool pool(2);
  Versions versions(0.5);
  DeltaJob job(&pool, {.layout = versions.layout, .target = versions.target.data()});
  job.BlocksReady(versions.AllBlocks());
  const DeltaOutput output = job.FinishAndWait();
  CHECK(output.blocks.empty());
  CHECK(output.block_hashes == versions.ManifestOf(versions.target)->block_hashes);
}

TEST_CASE("A job destroyed half-way leaves no task behind") {
  WorkerPool pool(2);
  Versions versions(0.5);
  for (int round = 0; round < 50; ++round) {
    DeltaJob job(&pool, {.layout = versions.layout,
                         .target = versions.target.data(),
                         .base = versions.base.data(),
                         .base_manifest = versions.ManifestOf(versions.base)});
    auto blocks = versions.AllBlocks();
    blocks.resize(blocks.size() / 2);
    job.BlocksReady(blocks);
  }
}

}  // namespace
}  // namespace lockstep::run
