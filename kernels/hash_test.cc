#include "kernels/hash.h"

#include <array>
#include <catch2/catch.hpp>
#include <vector>

#include "kernels/hash_targets.h"

namespace lockstep {
namespace {

TEST_CASE("XXH3 gives its published values") {
  CHECK(Hash64(nullptr, 0) == 0x2d06800538d394c2ULL);
  CHECK(Hash128({}) == std::array<uint8_t, 16>{0x99, 0xaa, 0x06, 0xd3, 0x01, 0x47, 0x98, 0xd8,  //
                                               0x60, 0x01, 0xc3, 0x24, 0x46, 0x8d, 0x49, 0x7f});
}

TEST_CASE("Long inputs have the same hash with every instruction set") {
  const auto targets = LongHashTargets();
  REQUIRE(targets.back().supported);
  std::vector<std::byte> bytes(20'000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i >> 3);
  for (const LongHashTarget& target : targets) {
    if (!target.supported) continue;
    INFO(target.name);
    // Around the ends of xxh3's stripes and of its pieces of 1 KiB, at aligned and misaligned starts.
    for (const size_t size : {241, 255, 256, 257, 1023, 1024, 1025, 1088, 2048, 2049, 19'990}) {
      for (const size_t start : {0, 1, 9}) {
        const auto view = std::span<const std::byte>(bytes).subspan(start, size);
        CHECK(target.hash(view.data(), size) == targets.back().hash(view.data(), size));
        CHECK(Hash64(view) == targets.back().hash(view.data(), size));
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
