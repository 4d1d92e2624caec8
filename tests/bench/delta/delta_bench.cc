// The two passes over a model that a sync consists of, against loops that only read the same memory: compare, hash and
// encode on the agent, decode, add and hash on the receiver. 3 GB in bfloat16, less where memory is short; 1 % of the
// elements changed by Adam.
//
//   delta_bench [--quick]
#include <cstring>
#include <string_view>
#include <thread>

#include "tests/bench/common/memory.h"
#include "tests/bench/common/or_die.h"
#include "tests/bench/common/qwen_layout.h"
#include "tests/bench/common/report.h"
#include "tests/bench/delta/adam_model.h"
#include "tests/bench/delta/delta_pair.h"

namespace lockstep::bench {
namespace {

constexpr double kChanged = 0.01;
constexpr double kChangedForBytes = 0.009;

struct Options {
  uint64_t bytes = 3'040'000'000;
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
    fast.push_back(pair.gigabytes() / pair.TimeDiff(payload::CodecLevel::kFast));
    read_for_compact.push_back(pair.gigabytes() / pair.TimeReadBoth());
    compact.push_back(pair.gigabytes() / pair.TimeDiff(payload::CodecLevel::kCompact));
  }
  for (auto* samples : {&fast, &compact, &read_for_fast, &read_for_compact}) samples->erase(samples->begin());
  PrintResult("diff_encode_fast", "GB/s", pair.bytes(), fast, read_for_fast);
  PrintResult("diff_encode_compact", "GB/s", pair.bytes(), compact, read_for_compact);
}

// Half 0 is brought forward to half 1's version, and back again.
void MeasureApply(DeltaPair& pair, int repeats) {
  std::vector<std::shared_ptr<const payload::Payload>> payloads;
  for (const size_t from : {0, 1}) {
    pair.TimeDiff(payload::CodecLevel::kFast, from);  // what pulls take over lanes as fast as memory
    payloads.push_back(pair.FoundPayload(1));
  }
  std::vector<double> applied, read;
  for (int turn = 0; turn < 2 * repeats; ++turn) {
    read.push_back(pair.gigabytes() / pair.TimeReadOne());
    applied.push_back(pair.gigabytes() / pair.TimeApply({&payloads[turn % 2], 1}));
    if (turn > 0) continue;
    if (std::memcmp(pair.half(0).data(), pair.half(1).data(), pair.half(0).size()) != 0) {
      Fail({ErrorCode::kInternal, "applied, a version has other bytes than it should"});
    }
  }
  applied.erase(applied.begin());
  read.erase(read.begin());
  PrintResult("decode_apply_verify", "GB/s", pair.bytes(), applied, read);
}

void MeasureBytes(DeltaPair& pair) {
  const double bound = EntropyPerChange(pair);
  pair.TimeDiff(payload::CodecLevel::kCompact);
  const auto bytes = static_cast<double>(pair.FoundPayload(1)->total_bytes());
  PrintResult("payload_bytes_per_change", "B", pair.bytes(), {bytes / static_cast<double>(pair.changes())}, {bound});
}

void Run(const Options& options) {
  const AdamModel model(QwenLayout(FittingBytes(options.bytes, DeltaPair::kCopies)));
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
  if (argc > 1 && std::string_view(argv[1]) == "--quick") options = {.bytes = 20'000'000, .repeats = 2};
  lockstep::bench::Run(options);
}
