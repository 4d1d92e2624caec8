#include "tests/bench/delta/delta_pair.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <latch>
#include <unordered_map>

#include "raas_receiver/replica/apply.h"
#include "tests/bench/common/or_die.h"
#include "tests/bench/common/report.h"

namespace lockstep::bench {
namespace {

// Never read, written so that no read is optimised away.
std::atomic<uint64_t> sink;

// Calls body(i) for each i on the pool's threads alone, as a DeltaJob's tasks run.
template <typename Body>
void OnPool(WorkerPool& pool, size_t count, const Body& body) {
  std::atomic<size_t> next{0};
  std::latch done(static_cast<std::ptrdiff_t>(pool.size()));
  for (size_t thread = 0; thread < pool.size(); ++thread) {
    pool.Post([&] {
      for (size_t i = next++; i < count; i = next++) body(i);
      done.count_down();
    });
  }
  done.wait();
}

template <typename Counts>
double Bits(const Counts& counts, double total) {
  double bits = 0;
  for (const auto& [symbol, count] : counts) {
    bits -= static_cast<double>(count) * std::log2(static_cast<double>(count) / total);
  }
  return bits;
}

uint64_t UnitAt(const std::byte* memory, uint32_t unit) {
  uint64_t value = 0;
  std::memcpy(&value, memory, unit);
  return value;
}

}  // namespace

DeltaPair::DeltaPair(std::shared_ptr<const model::ModelLayout> layout, size_t threads)
    : layout_(std::move(layout)),
      all_blocks_(layout_->AllBlocks()),
      agent_pool_(threads),
      receiver_pool_(std::max<size_t>(1, threads - 1)) {
  for (os::MappedSegment& slot : slots_) slot = OrDie(os::CreateMemfdSegment("slot", layout_->data_bytes()));
}

void DeltaPair::Written() {
  for (size_t which : {0, 1}) {
    auto manifest = std::make_shared<model::Manifest>();
    manifest->held.version = 1 + which;
    manifest->block_hashes = replica::HashBlocks(*layout_, slot(which), receiver_pool_);
    manifests_[which] = std::move(manifest);
  }
  ChooseLoads();
}

// Takes the loads with the lower median of a few turns that alternate.
void DeltaPair::ChooseLoads() {
  constexpr int kTurns = 5;
  std::vector<double> wide32, wide64;
  for (int turn = 0; turn < kTurns; ++turn) {
    loads_ = Loads::kWide32;
    wide32.push_back(TimeReadBoth());
    loads_ = Loads::kWide64;
    wide64.push_back(TimeReadBoth());
  }
  loads_ = Median(wide32) < Median(wide64) ? Loads::kWide32 : Loads::kWide64;
}

double DeltaPair::TimeReadBoth() {
  return TimeOnce([&] {
    OnPool(agent_pool_, layout_->block_count(), [&](size_t block) {
      const ByteRange range = layout_->block_range(static_cast<BlockIndex>(block));
      sink |= ReadBoth(slots_[0].data() + range.offset, slots_[1].data() + range.offset, range.bytes & ~uint64_t{7},
                       loads_);
    });
  });
}

double DeltaPair::TimeReadOne() {
  return TimeOnce([&] {
    receiver_pool_.ParallelFor(layout_->block_count(), [&](size_t block) {
      const ByteRange range = layout_->block_range(static_cast<BlockIndex>(block));
      sink |= ReadOne(slots_[0].data() + range.offset, range.bytes & ~uint64_t{7}, loads_);
    });
  });
}

double DeltaPair::TimeDiff(payload::CodecLevel level, size_t from) {
  found_ = {};  // freeing the last one is no part of this one
  const delta::DeltaInput input{.layout = layout_,
                                .target = slots_[1 - from].data(),
                                .base = slots_[from].data(),
                                .base_manifest = manifests_[from],
                                .level = level};
  return TimeOnce([&] {
    delta::DeltaJob job(&agent_pool_, input);
    job.BlocksReady(all_blocks_);
    found_ = job.FinishAndWait();
  });
}

uint64_t DeltaPair::changes() const {
  uint64_t sum = 0;
  for (const auto& block : found_.blocks) sum += block->changes;
  return sum;
}

std::shared_ptr<const payload::Payload> DeltaPair::FoundPayload(Version base) const {
  std::vector<const payload::DeltaBlock*> blocks;
  for (const auto& block : found_.blocks) blocks.push_back(block.get());
  return OrDie(payload::Payload::Assemble(*layout_, {.base = base, .target = base + 1}, std::move(blocks)));
}

double DeltaPair::TimeApply(std::span<const std::shared_ptr<const payload::Payload>> chain) {
  const std::vector<Version> versions(layout_->block_count(), chain.front()->base().version);
  std::vector<BlockIndex> bad;
  const double seconds =
      TimeOnce([&] { bad = replica::ApplyChain(*layout_, chain, versions, slots_[0].span(), receiver_pool_); });
  if (!bad.empty()) Fail({ErrorCode::kInternal, "a block has not the promised hash"});
  return seconds;
}

DeltaPair::Samples DeltaPair::SampleDiff(payload::CodecLevel level, int repeats) {
  Samples samples;
  TimeDiff(level);
  for (int turn = 0; turn < repeats; ++turn) {
    samples.read.push_back(TimeReadBoth());
    samples.pass.push_back(TimeDiff(level));
  }
  return samples;
}

DeltaPair::Samples DeltaPair::SampleApply(payload::CodecLevel level, int repeats) {
  TimeDiff(level, 1);
  const auto back = FoundPayload(1);
  TimeDiff(level, 0);
  const auto forward = FoundPayload(1);
  TimeApply({&forward, 1});
  if (std::memcmp(slot(0).data(), slot(1).data(), bytes()) != 0) {
    Fail({ErrorCode::kInternal, "applied, a version has other bytes than it should"});
  }
  Samples samples;
  for (int turn = 1; turn < 2 * repeats; ++turn) {
    samples.read.push_back(TimeReadOne());
    samples.pass.push_back(TimeApply({turn % 2 == 0 ? &forward : &back, 1}));
  }
  return samples;
}

double EntropyPerChange(const DeltaPair& pair) {
  std::unordered_map<uint64_t, uint64_t> gaps, steps;
  uint64_t changes = 0;
  for (BlockIndex block = 0; block < pair.layout().block_count(); ++block) {
    const ByteRange range = pair.layout().block_range(block);
    const uint32_t unit = pair.layout().block_unit(block);
    const std::byte* before = pair.slot(0).data() + range.offset;
    const std::byte* after = pair.slot(1).data() + range.offset;
    uint64_t last = 0;
    for (uint64_t at = 0; at + unit <= range.bytes; at += unit) {
      const uint64_t step = UnitAt(after + at, unit) - UnitAt(before + at, unit);
      if (step == 0) continue;
      ++gaps[(at - last) / unit];
      ++steps[unit == 8 ? step : step & ((uint64_t{1} << (8 * unit)) - 1)];
      ++changes;
      last = at + unit;
    }
  }
  if (changes == 0) return 0;
  const auto total = static_cast<double>(changes);
  return (Bits(gaps, total) + Bits(steps, total)) / 8 / total;
}

}  // namespace lockstep::bench
