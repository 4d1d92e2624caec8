#include "trainer_agent/store/level_choice.h"

#include <algorithm>

namespace lockstep::store {
namespace {

constexpr double kUsualDensity = 0.01;

}  // namespace

payload::CodecLevel ChooseLevel(uint64_t link_bytes_per_s, double density,
                                std::span<const payload::CodecLevel> levels) {
  if (link_bytes_per_s == 0) return levels.front();
  const double bytes_per_ns = static_cast<double>(link_bytes_per_s) / 1e9;
  // A change's time in all, as the bytes that the link carries in it.
  const auto cost = [&](payload::CodecLevel level) {
    return level->cost.bytes + bytes_per_ns * level->cost.Nanoseconds(density > 0 ? density : kUsualDensity);
  };
  return *std::ranges::min_element(levels, {}, cost);
}

}  // namespace lockstep::store
