// How long a receiver takes to make a delta ready for four tensor-parallel engine ranks (fused QKV, gate and up),
// against the plain replica: translated into write batches, against applied. 3 GB in bfloat16, less where memory
// is short; 1 % of the elements changed.
//
//   write_batches_bench [--quick]
#include <cstring>
#include <random>

#include "common/base/hash.h"
#include "common/model/manifest.h"
#include "common/model/safetensors.h"
#include "common/os/segment.h"
#include "kernels/apply.h"
#include "raas_receiver/placement/writes/delta_writes.h"
#include "raas_receiver/replica/apply.h"
#include "tests/bench/common/memory.h"
#include "tests/bench/common/or_die.h"
#include "tests/bench/common/qwen_layout.h"
#include "tests/bench/common/report.h"
#include "tests/bench/placement/qwen_ranks.h"

namespace lockstep::bench {
namespace {

constexpr uint32_t kRanks = 4;
constexpr size_t kThreads = 2;
constexpr double kChanged = 0.01;
constexpr uint64_t kBytes = 3'040'000'000, kQuickBytes = 60'000'000;
constexpr uint64_t kCopies = 1;  // the replica

// A replica's file, as an engine may load it; nothing is left of it when the process dies.
struct Replica {
  std::shared_ptr<const model::ModelLayout> layout;
  os::MappedSegment file;
  uint64_t data_offset = 0;

  explicit Replica(std::shared_ptr<const model::ModelLayout> of) : layout(std::move(of)) {
    const Bytes header = model::SafetensorsHeader(*layout);
    data_offset = header.size();
    file = OrDie(os::CreateMemfdSegment("replica", header.size() + layout->data_bytes()));
    std::memcpy(file.data(), header.data(), header.size());
    std::mt19937_64 random(1);
    for (uint64_t i = 0; i + 8 <= layout->data_bytes(); i += 8) {
      const uint64_t word = random();
      std::memcpy(data().data() + i, &word, sizeof word);
    }
  }
  std::span<std::byte> data() const { return file.span().subspan(data_offset); }
};

// Changes of a block by a few units in the last place, at random places.
payload::DeltaBlock ChangeOf(const Replica& replica, BlockIndex index, uint64_t seed) {
  const ByteRange range = replica.layout->block_range(index);
  const uint32_t unit = replica.layout->block_unit(index);
  std::mt19937_64 random(seed);
  std::geometric_distribution<uint32_t> gap(kChanged);
  payload::Changes changes;
  for (uint64_t position = gap(random); position < range.bytes / unit; position += 1 + gap(random)) {
    const uint64_t size = 1 + random() % 3;
    changes.positions.push_back(static_cast<uint32_t>(position));
    changes.steps.push_back(random() % 2 == 0 ? size : (uint64_t{1} << (8 * unit)) - size);
  }
  payload::DeltaBlock block{
      .block = index, .codec = payload::Codec::kSparse, .changes = static_cast<uint32_t>(changes.size())};
  if (changes.size() == 0) return block;
  Bytes bytes(replica.data().begin() + static_cast<ptrdiff_t>(range.offset),
              replica.data().begin() + static_cast<ptrdiff_t>(range.offset + range.bytes));
  kernels::BlockChanges delta{changes.positions.data(), changes.steps.data(), changes.size()};
  block.target_hash = kernels::AddStepsAndHash(bytes.data(), bytes.size(), unit, {&delta, 1});
  payload::EncodeSparse(changes, unit, payload::CodecLevel::kCompact, block.data);
  block.data_hash = Hash64(block.data);
  return block;
}

// From the replica as it is, version `base`, to the next one.
payload::DeltaChain NextDelta(const Replica& replica, Version base, WorkerPool& pool) {
  std::vector<payload::DeltaBlock> blocks(replica.layout->block_count());
  pool.ParallelFor(blocks.size(), [&](size_t i) {
    blocks[i] = ChangeOf(replica, static_cast<BlockIndex>(i), base * blocks.size() + i);
  });
  std::erase_if(blocks, [](const payload::DeltaBlock& block) { return block.data.empty(); });
  return {OrDie(payload::Payload::Assemble(*replica.layout, {.base = base, .target = base + 1}, blocks))};
}

struct Engine {
  std::shared_ptr<const placement::PlacementPlan> plan;

  explicit Engine(const model::ModelLayout& layout) {
    std::vector<placement::RankDescription> ranks;
    for (uint32_t rank = 0; rank < kRanks; ++rank) ranks.push_back(QwenRank(layout, rank, kRanks));
    plan = OrDie(placement::CompilePlacement(layout, ranks, {}));
  }
};

void Run(bool quick) {
  WorkerPool pool(kThreads - 1);
  const Replica replica(QwenLayout(FittingBytes(quick ? kQuickBytes : kBytes, kCopies)));
  const Engine engine(*replica.layout);
  std::vector<double> applied, packed;
  const int repeats = quick ? 1 : 7;
  for (int turn = 0; turn <= repeats; ++turn) {
    const Version base = static_cast<Version>(turn) + 1;
    const payload::DeltaChain chain = NextDelta(replica, base, pool);
    const std::vector<Version> versions(replica.layout->block_count(), base);
    const double apply = TimeOnce([&] {
      if (replica::ApplyChain(*replica.layout, chain, versions, replica.data(), pool).empty()) return;
      Fail({ErrorCode::kInternal, "a block has not the promised hash"});
    });
    const double pack = TimeOnce([&] {
      auto writes =
          OrDie(placement::DeltaWrites::Create(*engine.plan, {0, 1, 2, 3}, *replica.layout, chain, replica.data()));
      OrDie(writes.Run([](uint32_t, const os::UniqueFd&) { return OkStatus(); }, pool));
    });
    if (turn == 0) continue;  // warms memory
    applied.push_back(apply);
    packed.push_back(pack);
  }
  PrintResult("write_batches_tp4", "s", replica.layout->data_bytes(), packed, applied);
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::bench::Run(lockstep::bench::IsQuick(argc, argv));
}
