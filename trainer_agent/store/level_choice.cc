#include "trainer_agent/store/level_choice.h"

namespace lockstep {
namespace {

// Measured by tests/bench/codec_study on the Adam model at 1 %, two cores (docs/performance.md): what the entropy stage
// saves of each change, and what it costs to add and to take away. Densities from 0.05 to 10 % move the border by less
// than half.
constexpr double kSavedBytes = 0.38;
constexpr double kEntropyNs = 3.2;  // encode and decode together, of two cores

}  // namespace

CodecLevel ChooseLevel(uint64_t link_bytes_per_s) {
  if (link_bytes_per_s == 0) return CodecLevel::kFast;
  const double saved_ns = kSavedBytes / static_cast<double>(link_bytes_per_s) * 1e9;
  return saved_ns > kEntropyNs ? CodecLevel::kCompact : CodecLevel::kFast;
}

}  // namespace lockstep
