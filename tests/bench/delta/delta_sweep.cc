// What the passes of delta_bench give over densities, threads, model sizes and deltas that no training
// makes: series for plots and documents, no figures to reach.
//
//   delta_sweep [--quick]
#include <random>
#include <string_view>
#include <thread>

#include "raas_receiver/replica/apply.h"
#include "tests/bench/common/memory.h"
#include "tests/bench/common/or_die.h"
#include "tests/bench/common/qwen_layout.h"
#include "tests/bench/common/report.h"
#include "tests/bench/delta/adam_model.h"
#include "tests/bench/delta/delta_pair.h"

namespace lockstep::bench {
namespace {

struct Options {
  uint64_t bytes = 600'000'000;
  std::vector<double> densities = {0.0005, 0.003, 0.006, 0.01, 0.025, 0.05, 0.1, 0.5};
  std::vector<uint64_t> sizes = {300'000'000, 600'000'000, 1'000'000'000, 1'500'000'000, 3'000'000'000, 6'000'000'000};
  int repeats = 5;
};

constexpr double kChanged = 0.01;
constexpr double kUsualRate = 1e-6;

size_t Cores() {
  return std::max(1u, std::thread::hardware_concurrency());
}

void WritePair(const AdamModel& model, double rate, DeltaPair& pair) {
  for (uint32_t version : {0, 1}) model.Write(version, rate, pair.slot(version), pair.pool());
  pair.Written();
}

// Adds to `row` what the agent's pass gives, and a loop that only reads both slots. Speeds are of the model's bytes.
void MeasureDiff(DeltaPair& pair, payload::CodecLevel level, int repeats, Json& row) {
  const DeltaPair::Samples seconds = pair.SampleDiff(level, repeats);
  row["level"] = level->name;
  row["gigabytes"] = pair.gigabytes();
  row["read_both"] = pair.gigabytes() / Median(seconds.read);
  row["diff_encode"] = pair.gigabytes() / Median(seconds.pass);
}

// And what the receiver's gives.
void MeasureApply(DeltaPair& pair, payload::CodecLevel level, int repeats, Json& row) {
  const DeltaPair::Samples seconds = pair.SampleApply(level, repeats);
  const uint64_t changes = pair.changes();
  const size_t bytes = pair.FoundPayload(1)->total_bytes();
  row["changes"] = changes;
  row["payload_bytes"] = bytes;
  row["bytes_per_change"] = changes > 0 ? static_cast<double>(bytes) / static_cast<double>(changes) : 0;
  row["read_one"] = pair.gigabytes() / Median(seconds.read);
  row["decode_apply_verify"] = pair.gigabytes() / Median(seconds.pass);
}

void MeasureLevels(DeltaPair& pair, std::string_view series, const Json& first, int repeats) {
  const double entropy = EntropyPerChange(pair);
  for (const payload::CodecLevel level : payload::CodecLevel::All()) {
    Json row = first;
    MeasureDiff(pair, level, repeats, row);
    MeasureApply(pair, level, repeats, row);
    row["entropy_bytes_per_change"] = entropy;
    PrintRow(series, "GB/s", row);
  }
}

void ByDensity(const Options& options) {
  const AdamModel model(QwenLayout(options.bytes));
  DeltaPair pair(model.layout(), Cores());
  for (const double density : options.densities) {
    WritePair(model, model.LearningRateFor(density), pair);
    MeasureLevels(pair, "by_density", {{"density", density}}, options.repeats);
  }
}

// Of the agent's pass alone: the receiver's session works in addition to its threads.
void ByThreads(const Options& options) {
  const AdamModel model(QwenLayout(options.bytes));
  const double rate = model.LearningRateFor(kChanged);
  for (size_t threads = 1; threads <= Cores();
       threads = threads < Cores() ? std::min(2 * threads, Cores()) : SIZE_MAX) {
    DeltaPair pair(model.layout(), threads);
    WritePair(model, rate, pair);
    for (const payload::CodecLevel level : payload::CodecLevel::All()) {
      Json row = {{"threads", threads}};
      MeasureDiff(pair, level, options.repeats, row);
      PrintRow("by_threads", "GB/s", row);
    }
  }
}

// Of the sizes that memory is too short for, the largest that it is not, instead of the first.
void BySize(const Options& options) {
  for (const uint64_t size : options.sizes) {
    const uint64_t fitting = FittingBytes(size, DeltaPair::kCopies);
    {
      const AdamModel model(QwenLayout(fitting));
      DeltaPair pair(model.layout(), Cores());
      WritePair(model, model.LearningRateFor(kChanged), pair);
      MeasureLevels(pair, "by_size", {{"size", static_cast<double>(fitting) / 1e9}}, options.repeats);
    }
    if (fitting < size) return;
  }
}

// Changes of slot 1 against an equal slot 0, element by element of two bytes.
struct Case {
  std::string_view name;
  void (*change)(std::span<uint16_t> before, std::span<uint16_t> after);
};

constexpr size_t kRow = 4096;

constexpr Case kCases[] = {
    {"nothing", [](std::span<uint16_t>, std::span<uint16_t>) {}},
    {"everything",
     [](std::span<uint16_t>, std::span<uint16_t> after) {
       for (uint16_t& element : after) element ^= 1;
     }},
    {"one row of 100, whole",
     [](std::span<uint16_t>, std::span<uint16_t> after) {
       for (size_t row = 0; row + kRow <= after.size(); row += 100 * kRow) {
         for (uint16_t& element : after.subspan(row, kRow)) element ^= 1;
       }
     }},
    {"signs of zeros, payloads of NaNs",
     [](std::span<uint16_t> before, std::span<uint16_t> after) {
       std::minstd_rand random(1);
       for (size_t i = 0; i < after.size(); i += 1 + random() % 200) {
         before[i] = random() % 2 == 0 ? 0x0000 : 0x7fc0;
         after[i] = before[i] == 0 ? 0x8000 : static_cast<uint16_t>(0x7f81 + random() % 0x3f);
       }
     }},
    {"random bytes, 1 %",
     [](std::span<uint16_t>, std::span<uint16_t> after) {
       std::minstd_rand random(1);
       for (size_t i = 0; i < after.size(); i += 1 + random() % 200) after[i] ^= static_cast<uint16_t>(1 + random());
     }},
};

std::span<uint16_t> Elements(std::span<std::byte> slot) {
  return {reinterpret_cast<uint16_t*>(slot.data()), slot.size() / 2};
}

// bf16, fp32 and fp8 together, as a mixture of experts with a router in fp32 and experts in fp8 has them.
std::shared_ptr<const model::ModelLayout> MixedLayout(uint64_t bytes) {
  const uint64_t rows = bytes / 2048 / 100;
  std::vector<model::TensorMeta> tensors;
  for (int layer = 0; layer < 10; ++layer) {
    const std::string name = "layers." + std::to_string(layer) + ".";
    tensors.push_back({.name = name + "gate", .dtype = model::DType::kF32, .shape = {rows / 20, 2048}});
    tensors.push_back({.name = name + "attention", .dtype = model::DType::kBF16, .shape = {rows, 2048}});
    tensors.push_back({.name = name + "experts", .dtype = model::DType::kF8E4M3, .shape = {7 * rows, 2048}});
  }
  OrDie(model::AssignOffsets(tensors));
  return OrDie(model::ModelLayout::Create(std::move(tensors)));
}

void ByCase(const Options& options) {
  {
    const AdamModel model(QwenLayout(options.bytes));
    DeltaPair pair(model.layout(), Cores());
    for (const Case& one : kCases) {
      for (uint32_t slot : {0, 1}) model.Write(0, 0, pair.slot(slot), pair.pool());
      one.change(Elements(pair.slot(0)), Elements(pair.slot(1)));
      pair.Written();
      MeasureLevels(pair, "by_case", {{"case", one.name}}, options.repeats);
    }
  }
  const AdamModel model(MixedLayout(options.bytes));
  DeltaPair pair(model.layout(), Cores());
  WritePair(model, kUsualRate, pair);
  MeasureLevels(pair, "by_case", {{"case", "bf16, fp32 and fp8"}}, options.repeats);
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::bench::Options options;
  if (lockstep::bench::IsQuick(argc, argv)) {
    options = {.bytes = 20'000'000, .densities = {0.003, 0.03}, .sizes = {10'000'000, 20'000'000}, .repeats = 1};
  }
  options.bytes = lockstep::bench::FittingBytes(options.bytes, lockstep::bench::DeltaPair::kCopies);
  ByDensity(options);
  ByThreads(options);
  BySize(options);
  ByCase(options);
}
