// The passes over a model that a sync consists of. Compare, hash and encode on the agent, decode, add and hash on the
// receiver, against loops that only read the same memory; and on the receiver the translation of a delta into write
// batches for four tensor-parallel engine ranks (fused QKV, gate and up), against applying it. 3 GB in bf16, less
// where memory is short; 1 % of the elements changed by Adam.
#include "raas_receiver/engine/placement/writes/delta_writes.h"
#include "tests/bench/common/bench.h"
#include "tests/bench/common/models.h"
#include "tests/bench/delta/delta_pair.h"

namespace lockstep::bench {
namespace {

constexpr double kChanged = 0.01;
constexpr double kChangedForBytes = 0.009;
constexpr uint32_t kEngineRanks = 4;

void Print(std::string_view figure, const DeltaPair& pair, const DeltaPair::Samples& seconds) {
  PrintResult(figure, "GB/s", pair.bytes(), Throughput(seconds.pass, pair.bytes()),
              Throughput(seconds.read, pair.bytes()));
}

// Slot 0 is the plain replica, brought forward and back.
void MeasureWrites(DeltaPair& pair, int repeats) {
  const auto plan = OrDie(engine::CompilePlacement(pair.layout(), QwenRanks(pair.layout(), kEngineRanks), {}));
  const auto deltas = pair.ThereAndBack(payload::CodecLevel::kCompact);
  std::vector<double> applied, packed;
  for (int turn = 0; turn < 2 * (1 + repeats); ++turn) {
    const auto& delta = deltas[turn % 2];
    const double apply = pair.TimeApply(delta);
    const double pack = TimeOnce([&] {
      auto writes = OrDie(engine::DeltaWrites::Create(*plan, {0, 1, 2, 3}, pair.layout(), {delta}, pair.slot(0)));
      OrDie(writes.Run([](uint32_t, const os::UniqueFd&) { return OkStatus(); }, pair.pool()));
    });
    if (turn < 2) continue;  // warms memory
    applied.push_back(apply);
    packed.push_back(pack);
  }
  PrintResult("write_batches_tp4", "s", pair.bytes(), packed, applied);
}

void MeasureBytes(DeltaPair& pair) {
  pair.TimeDiff(payload::CodecLevel::kCompact);
  const auto bytes = static_cast<double>(pair.found()->total_bytes());
  PrintResult("payload_bytes_per_change", "B", pair.bytes(), {bytes / static_cast<double>(pair.changes())},
              {pair.EntropyPerChange()});
}

}  // namespace

void Run(bool quick) {
  const int repeats = quick ? 2 : 9;
  DeltaPair pair(FittingBytes(quick ? 20'000'000 : 3'040'000'000, DeltaPair::kCopies));
  pair.Write(kChanged);
  Print("diff_encode_fast", pair, pair.SampleDiff(payload::CodecLevel::kFast, repeats));
  Print("diff_encode_compact", pair, pair.SampleDiff(payload::CodecLevel::kCompact, repeats));
  MeasureWrites(pair, quick ? 1 : 4);
  // At the level that pulls take over lanes as fast as memory.
  Print("decode_apply_verify", pair, pair.SampleApply(payload::CodecLevel::kFast, repeats));
  pair.Write(kChangedForBytes);
  MeasureBytes(pair);
}

}  // namespace lockstep::bench
