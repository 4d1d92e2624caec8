#include "trainer_agent/store/level_choice.h"

#include <catch2/catch.hpp>
#include <utility>
#include <vector>

#include "common/payload/test_level.h"

namespace lockstep::store {
namespace {

TEST_CASE("Of the first two, the level is compact below a link's rate that rises with the density and levels off") {
  const auto levels = payload::CodecLevel::All().first(2);
  for (const auto& [density, border] : std::vector<std::pair<double, uint64_t>>{{0.0001, 1'000'000},
                                                                                {0.002, 20'000'000},
                                                                                {0.01, 100'000'000},
                                                                                {0.02, 200'000'000},
                                                                                {0.022, 220'000'000},
                                                                                {0.5, 220'000'000},
                                                                                {1, 220'000'000},
                                                                                {0, 100'000'000}}) {
    INFO(density);
    CHECK(ChooseLevel(border - 1, density, levels) == payload::CodecLevel::kCompact);
    CHECK(ChooseLevel(border, density, levels) == payload::CodecLevel::kFast);
    CHECK(ChooseLevel(1, density, levels) == payload::CodecLevel::kCompact);
    CHECK(ChooseLevel(10'000'000'000, density, levels) == payload::CodecLevel::kFast);
  }
}

TEST_CASE(
    "The slower the link the higher the level, from the first, which is for what nothing is known of, to the last") {
  const auto levels = payload::CodecLevel::All();
  CHECK(ChooseLevel(0, 0.01) == levels.front());
  payload::CodecLevel level = levels.back();
  for (uint64_t rate = 1'000; rate < 10'000'000'000; rate += rate / 20) {
    const payload::CodecLevel before = std::exchange(level, ChooseLevel(rate, 0.01));
    CHECK(level <= before);
    if (rate == 1'000) CHECK(level == levels.back());
  }
  CHECK(level == levels.front());
}

TEST_CASE("Of any number of levels the one is chosen that brings a delta soonest") {
  const payload::CodecLevel levels[] = {payload::CodecLevel::kFast, payload::CodecLevel::kCompact, payload::kHard};
  CHECK(ChooseLevel(0, 0.01, levels) == payload::CodecLevel::kFast);
  CHECK(ChooseLevel(1'000'000, 0.01, levels) == payload::kHard);
  CHECK(ChooseLevel(50'000'000, 0.01, levels) == payload::CodecLevel::kCompact);
  CHECK(ChooseLevel(1'000'000'000, 0.01, levels) == payload::CodecLevel::kFast);
}

}  // namespace
}  // namespace lockstep::store
