#include "trainer_agent/store/level_choice.h"

#include <algorithm>

namespace lockstep {
namespace {

// Where compact begins to pay, in bytes a second, measured on the Adam model of tests/bench, two cores
// (docs/performance.md). What the entropy stage saves of a change, 0.3 to 0.4 bytes, hardly depends on how much
// changed; what it costs a change falls from 18 to 1.5 ns as blocks have more changes to share its tables. So the
// border rises with the density, 28 MB/s at 0.26 %, 56 at 0.53, 118 at 1.16, and levels off.
constexpr double kBorderAtAll = 1e10;
constexpr double kMostBorder = 220e6;
constexpr double kUsualDensity = 0.01;

}  // namespace

CodecLevel ChooseLevel(uint64_t link_bytes_per_s, double density) {
  if (link_bytes_per_s == 0) return CodecLevel::kFast;
  const double border = std::min(kMostBorder, kBorderAtAll * (density > 0 ? density : kUsualDensity));
  return static_cast<double>(link_bytes_per_s) < border ? CodecLevel::kCompact : CodecLevel::kFast;
}

}  // namespace lockstep
