#include "trainer_agent/buffer/coverage.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

namespace lockstep {
namespace {

std::shared_ptr<const ModelLayout> Layout() {
  return *ModelLayout::Create({{"a", DType::kU8, {5000}, 0}, {"b", DType::kU8, {5000}, 5000}}, 4096);
}

TEST_CASE("Blocks complete when their last byte is told, in whatever order") {
  const auto layout = Layout();
  Coverage coverage(*layout);
  CHECK((*coverage.Add({4000, 200})).empty());
  CHECK(*coverage.Add({0, 4000}) == std::vector<BlockIndex>{0});
  CHECK(coverage.FirstMissing() == ByteRange{4200, 5800});
  CHECK((*coverage.Add({9000, 1000})).empty());
  CHECK(coverage.FirstMissing() == ByteRange{4200, 4800});
  CHECK(*coverage.Add({4200, 4800}) == std::vector<BlockIndex>{1, 2});
  CHECK(coverage.complete());
  CHECK_FALSE(coverage.FirstMissing());
}

TEST_CASE("A byte told twice, or outside, is refused and changes nothing") {
  const auto layout = Layout();
  Coverage coverage(*layout);
  REQUIRE(coverage.Add({100, 100}).ok());
  for (const ByteRange range : {ByteRange{100, 100}, {50, 51}, {199, 1}, {150, 10}, {0, 10000}}) {
    const auto again = coverage.Add(range);
    CHECK(again.status().message().find("told twice") != std::string::npos);
  }
  CHECK_FALSE(coverage.Add({9999, 2}).ok());
  CHECK_FALSE(coverage.Add({~uint64_t{0}, 2}).ok());
  CHECK(coverage.Add({10, 0}).ok());
  REQUIRE(coverage.Add({0, 100}).ok());
  REQUIRE(coverage.Add({200, 9800}).ok());
  CHECK(coverage.complete());
}

TEST_CASE("Any partition in any order completes every block exactly once") {
  std::mt19937 random(3);
  const auto layout = Layout();
  for (int round = 0; round < 200; ++round) {
    std::vector<ByteRange> parts;
    for (uint64_t at = 0; at < 10000;) {
      const uint64_t bytes = std::min<uint64_t>(10000 - at, random() % 3000 + 1);
      parts.push_back({at, bytes});
      at += bytes;
    }
    std::shuffle(parts.begin(), parts.end(), random);
    Coverage coverage(*layout);
    std::vector<BlockIndex> completed;
    for (const ByteRange& part : parts) {
      const auto blocks = *coverage.Add(part);
      completed.insert(completed.end(), blocks.begin(), blocks.end());
    }
    std::sort(completed.begin(), completed.end());
    REQUIRE(completed == std::vector<BlockIndex>{0, 1, 2});
    REQUIRE(coverage.complete());
  }
}

}  // namespace
}  // namespace lockstep
