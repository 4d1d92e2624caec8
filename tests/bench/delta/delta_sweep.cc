// What the passes of delta_bench give over densities, threads and sizes of a model: series for plots and documents, no
// figures to reach. Speeds are in GB of the model a second.
#include "tests/bench/common/bench.h"
#include "tests/bench/delta/delta_pair.h"

namespace lockstep::bench {
namespace {

constexpr double kChanged = 0.01;

// What the agent's pass gives, and a loop that only reads both slots, added to `row`.
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
  const auto bytes = static_cast<double>(pair.found()->total_bytes());
  row["bytes_per_change"] = bytes / static_cast<double>(pair.changes());
  row["read_one"] = pair.gigabytes() / Median(seconds.read);
  row["decode_apply_verify"] = pair.gigabytes() / Median(seconds.pass);
}

void MeasureLevels(DeltaPair& pair, std::string_view series, const Json& first, int repeats) {
  const double entropy = pair.EntropyPerChange();
  for (const payload::CodecLevel level : payload::CodecLevel::All()) {
    Json row = first;
    MeasureDiff(pair, level, repeats, row);
    MeasureApply(pair, level, repeats, row);
    row["entropy_bytes_per_change"] = entropy;
    PrintRow(series, "GB/s", row);
  }
}

void ByDensity(uint64_t bytes, const std::vector<double>& densities, int repeats) {
  DeltaPair pair(bytes);
  for (const double density : densities) {
    pair.Write(density);
    MeasureLevels(pair, "by_density", {{"density", density}}, repeats);
  }
}

// Of the agent's pass alone: the receiver's session works in addition to its threads.
void ByThreads(uint64_t bytes, int repeats) {
  for (size_t power = 1; power < 2 * Cores(); power *= 2) {
    const size_t threads = std::min(power, Cores());
    DeltaPair pair(bytes, threads);
    pair.Write(kChanged);
    for (const payload::CodecLevel level : payload::CodecLevel::All()) {
      Json row = {{"threads", threads}};
      MeasureDiff(pair, level, repeats, row);
      PrintRow("by_threads", "GB/s", row);
    }
  }
}

// Of the sizes that memory is too short for, the largest that it is not, instead of the first.
void BySize(const std::vector<uint64_t>& sizes, int repeats) {
  for (const uint64_t size : sizes) {
    const uint64_t fitting = FittingBytes(size, DeltaPair::kCopies);
    DeltaPair pair(fitting);
    pair.Write(kChanged);
    MeasureLevels(pair, "by_size", {{"size", static_cast<double>(fitting) / 1e9}}, repeats);
    if (fitting < size) return;
  }
}

}  // namespace

void Run(bool quick) {
  const uint64_t bytes = quick ? 20'000'000 : FittingBytes(600'000'000, DeltaPair::kCopies);
  const int repeats = quick ? 1 : 5;
  ByDensity(bytes, quick ? std::vector{0.003, 0.03} : std::vector{0.0005, 0.003, 0.006, 0.01, 0.025, 0.05, 0.1, 0.5},
            repeats);
  ByThreads(bytes, repeats);
  using Sizes = std::vector<uint64_t>;
  BySize(quick ? Sizes{10'000'000, 20'000'000}
               : Sizes{300'000'000, 600'000'000, 1'000'000'000, 1'500'000'000, 3'000'000'000, 6'000'000'000},
         repeats);
}

}  // namespace lockstep::bench
