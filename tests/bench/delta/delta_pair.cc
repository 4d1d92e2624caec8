#include "tests/bench/delta/delta_pair.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <latch>
#include <thread>
#include <unordered_map>

#include "raas_receiver/replica/apply.h"
#include "tests/bench/common/bench.h"
#include "tests/bench/common/models.h"

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

}  // namespace

size_t Cores() {
  return std::max(1u, std::thread::hardware_concurrency());
}

DeltaPair::DeltaPair(uint64_t bytes, size_t threads)
    : model_(QwenLayout(bytes)), agent_pool_(threads), receiver_pool_(std::max<size_t>(1, threads - 1)) {
  for (os::MappedSegment& slot : slots_) slot = OrDie(os::CreateMemfdSegment("slot", this->bytes()));
}

void DeltaPair::Write(double density) {
  const double rate = model_.LearningRateFor(density);
  for (uint32_t which : {0, 1}) {
    model_.Write(which, rate, slot(which), receiver_pool_);
    auto manifest = std::make_shared<model::Manifest>();
    manifest->held.version = 1 + which;
    manifest->block_hashes = replica::HashBlocks(layout(), slot(which), receiver_pool_);
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

// By the agent's threads.
double DeltaPair::TimeReadBoth() {
  return TimeOnce([&] {
    OnPool(agent_pool_, layout().block_count(), [&](size_t block) {
      const ByteRange range = layout().block_range(static_cast<BlockIndex>(block));
      sink |= ReadBoth(slots_[0].data() + range.offset, slots_[1].data() + range.offset, range.bytes, loads_);
    });
  });
}

// Slot 0, by the receiver's threads: the two halves of a block as the two streams.
double DeltaPair::TimeReadOne() {
  return TimeOnce([&] {
    receiver_pool_.ParallelFor(layout().block_count(), [&](size_t block) {
      const ByteRange range = layout().block_range(static_cast<BlockIndex>(block));
      const std::byte* memory = slots_[0].data() + range.offset;
      const size_t half = range.bytes / 16 * 8;
      sink |= ReadBoth(memory, memory + half, half, loads_);
    });
  });
}

double DeltaPair::TimeDiff(payload::CodecLevel level, size_t from) {
  found_ = {};  // freeing the last one is no part of this one
  const std::vector<BlockIndex> blocks = layout().AllBlocks();
  const run::DeltaInput input{.layout = model_.layout(),
                              .target = slots_[1 - from].data(),
                              .base = slots_[from].data(),
                              .base_manifest = manifests_[from],
                              .level = level};
  return TimeOnce([&] {
    run::DeltaJob job(&agent_pool_, input);
    job.BlocksReady(blocks);
    found_ = job.FinishAndWait();
  });
}

uint64_t DeltaPair::changes() const {
  uint64_t sum = 0;
  for (const auto& block : found_.blocks) sum += block->changes;
  return sum;
}

std::shared_ptr<const payload::Payload> DeltaPair::found() const {
  std::vector<const payload::DeltaBlock*> blocks;
  for (const auto& block : found_.blocks) blocks.push_back(block.get());
  return OrDie(payload::Payload::Assemble(layout(), {.base = 1, .target = 2}, std::move(blocks)));
}

std::vector<std::shared_ptr<const payload::Payload>> DeltaPair::ThereAndBack(payload::CodecLevel level) {
  TimeDiff(level, 1);
  const auto back = found();
  TimeDiff(level, 0);
  return {found(), back};
}

double DeltaPair::TimeApply(const std::shared_ptr<const payload::Payload>& delta) {
  const std::vector<Version> versions(layout().block_count(), delta->base().version);
  std::vector<BlockIndex> bad;
  const double seconds = TimeOnce([&] {
    bad = replica::ApplyChain(layout(), {&delta, 1}, versions, slots_[0].span(), receiver_pool_);
  });
  Require(bad.empty(), "a block has not the promised hash");
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
  const auto deltas = ThereAndBack(level);
  TimeApply(deltas[0]);
  Require(std::memcmp(slot(0).data(), slot(1).data(), bytes()) == 0,
          "applied, a version has other bytes than it should");
  Samples samples;
  for (int turn = 1; turn < 2 * repeats; ++turn) {
    samples.read.push_back(TimeReadOne());
    samples.pass.push_back(TimeApply(deltas[turn % 2]));
  }
  return samples;
}

double DeltaPair::EntropyPerChange() const {
  std::unordered_map<uint16_t, uint64_t> steps;
  std::unordered_map<uint32_t, uint64_t> gaps;
  double changes = 0;
  for (BlockIndex block = 0; block < layout().block_count(); ++block) {
    const ByteRange range = layout().block_range(block);
    const auto* before = reinterpret_cast<const uint16_t*>(slot(0).data() + range.offset);
    const auto* after = reinterpret_cast<const uint16_t*>(slot(1).data() + range.offset);
    for (uint32_t i = 0, last = 0; i < range.bytes / 2; ++i) {
      if (before[i] == after[i]) continue;
      ++gaps[i - last];
      ++steps[static_cast<uint16_t>(after[i] - before[i])];
      ++changes;
      last = i;
    }
  }
  return (Bits(gaps, changes) + Bits(steps, changes)) / 8 / changes;
}

}  // namespace lockstep::bench
