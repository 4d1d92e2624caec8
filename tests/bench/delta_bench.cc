// The two passes over a model that a sync consists of, against loops that only read the same memory: compare, hash and
// encode on the agent, decode, add and hash on the receiver. 3 GB in bfloat16; 1 % of the elements changed by Adam.
//
//   delta_bench [--quick] [--gigabytes N]
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

#include "tests/bench/adam_model.h"
#include "tests/bench/delta_pair.h"
#include "tests/bench/or_die.h"
#include "tests/bench/report.h"

namespace lockstep::bench {
namespace {

constexpr double kChanged = 0.01;
constexpr double kChangedForBytes = 0.009;

struct Options {
  double gigabytes = 3.04;
  int repeats = 9;
};

void WritePair(const AdamModel& model, double density, DeltaPair& pair) {
  const double rate = model.LearningRateFor(density);
  for (uint32_t version : {0, 1}) model.Write(version, rate, pair.half(version), pair.pool());
  pair.Written();
}

// Loops and passes take turns: memory's speed changes from one second to the next.
void MeasureDiff(DeltaPair& pair, int repeats) {
  std::vector<double> fast, compact, read_for_fast, read_for_compact;
  for (int turn = 0; turn <= repeats; ++turn) {
    read_for_fast.push_back(pair.gigabytes() / pair.TimeReadBoth());
    fast.push_back(pair.gigabytes() / pair.TimeDiff(CodecLevel::kFast));
    read_for_compact.push_back(pair.gigabytes() / pair.TimeReadBoth());
    compact.push_back(pair.gigabytes() / pair.TimeDiff(CodecLevel::kCompact));
  }
  for (auto* samples : {&fast, &compact, &read_for_fast, &read_for_compact}) samples->erase(samples->begin());
  PrintResult("diff_encode_fast", "GB/s", fast, read_for_fast);
  PrintResult("diff_encode_compact", "GB/s", compact, read_for_compact);
}

// Half 0 is brought forward to half 1's version, and back again.
void MeasureApply(DeltaPair& pair, int repeats) {
  std::vector<std::shared_ptr<const Payload>> way;
  for (const size_t from : {0, 1}) {
    pair.TimeDiff(CodecLevel::kFast, from);  // what pulls take over lanes as fast as memory
    way.push_back(pair.FoundPayload(1));
  }
  std::vector<double> applied, read;
  for (int turn = 0; turn < 2 * repeats; ++turn) {
    read.push_back(pair.gigabytes() / pair.TimeReadOne());
    applied.push_back(pair.gigabytes() / pair.TimeApply({&way[turn % 2], 1}));
    if (turn > 0) continue;
    if (std::memcmp(pair.half(0).data(), pair.half(1).data(), pair.half(0).size()) != 0) {
      Fail({ErrorCode::kInternal, "applied, a version has other bytes than it should"});
    }
  }
  applied.erase(applied.begin());
  read.erase(read.begin());
  PrintResult("decode_apply_verify", "GB/s", applied, read);
}

void MeasureBytes(DeltaPair& pair) {
  const double bound = EntropyPerChange(pair);
  pair.TimeDiff(CodecLevel::kCompact);
  const auto bytes = static_cast<double>(pair.FoundPayload(1)->total_bytes());
  PrintResult("payload_bytes_per_change", "B", {bytes / static_cast<double>(pair.changes())}, {bound});
}

void Run(const Options& options) {
  const AdamModel model(QwenLayout(options.gigabytes));
  DeltaPair pair(model.layout(), std::max(1u, std::thread::hardware_concurrency()));
  WritePair(model, kChanged, pair);
  MeasureDiff(pair, options.repeats);
  MeasureApply(pair, options.repeats);
  WritePair(model, kChangedForBytes, pair);
  MeasureBytes(pair);
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::bench::Options options;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--quick") options = {.gigabytes = 0.02, .repeats = 2};
    if (std::string_view(argv[i]) == "--gigabytes" && i + 1 < argc) options.gigabytes = std::atof(argv[++i]);
  }
  lockstep::bench::Run(options);
}
