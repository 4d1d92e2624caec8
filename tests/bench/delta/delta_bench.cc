// The two passes over a model that a sync consists of, against loops that only read the same memory: compare, hash and
// encode on the agent, decode, add and hash on the receiver. 3 GB in bfloat16, less where memory is short; 1 % of the
// elements changed by Adam.
//
//   delta_bench [--quick]
#include <algorithm>
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
  for (uint32_t version : {0, 1}) model.Write(version, rate, pair.slot(version), pair.pool());
  pair.Written();
}

void Print(std::string_view figure, const DeltaPair& pair, const DeltaPair::Samples& seconds) {
  PrintResult(figure, "GB/s", pair.bytes(), Throughput(seconds.pass, pair.bytes()),
              Throughput(seconds.read, pair.bytes()));
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
  Print("diff_encode_fast", pair, pair.SampleDiff(payload::CodecLevel::kFast, options.repeats));
  Print("diff_encode_compact", pair, pair.SampleDiff(payload::CodecLevel::kCompact, options.repeats));
  // At the level that pulls take over lanes as fast as memory.
  Print("decode_apply_verify", pair, pair.SampleApply(payload::CodecLevel::kFast, options.repeats));
  WritePair(model, kChangedForBytes, pair);
  MeasureBytes(pair);
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::bench::Options options;
  if (lockstep::bench::IsQuick(argc, argv)) options = {.bytes = 20'000'000, .repeats = 2};
  lockstep::bench::Run(options);
}
