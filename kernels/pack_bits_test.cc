#include "kernels/pack_bits.h"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

namespace lockstep::kernels {
namespace {

// The format as it is written down, a bit at a time.
template <typename T>
std::vector<uint8_t> Oracle(const std::vector<T>& numbers, uint32_t bits) {
  std::vector<uint8_t> out(PackedBytes(numbers.size(), bits));
  const uint32_t planes = bits / 8;
  const uint32_t rest = bits % 8;
  for (size_t i = 0; i < numbers.size(); ++i) {
    for (uint32_t plane = 0; plane < planes; ++plane) {
      out[plane * numbers.size() + i] = static_cast<uint8_t>(numbers[i] >> (8 * plane));
    }
    for (uint32_t bit = 0; bit < rest; ++bit) {
      const size_t at = planes * numbers.size() * 8 + i * rest + bit;
      out[at / 8] = static_cast<uint8_t>(out[at / 8] | (numbers[i] >> (8 * planes + bit) & 1) << (at % 8));
    }
  }
  return out;
}

template <typename T>
void CheckAll() {
  std::mt19937_64 random(1);
  for (uint32_t bits = 0; bits <= 8 * sizeof(T); ++bits) {
    for (const size_t count : {0, 1, 7, 8, 9, 255, 256, 257, 1000}) {
      INFO(count << " numbers of " << bits << " bits");
      std::vector<T> numbers(count);
      for (T& number : numbers) number = static_cast<T>(random());
      const std::vector<uint8_t> expected = Oracle(numbers, bits);
      std::vector<uint8_t> packed(expected.size() + kPackSlack);
      PackBits(numbers.data(), count, bits, packed.data());
      packed.resize(expected.size());
      packed.shrink_to_fit();  // so that a sanitizer sees a read past the stream
      CHECK(packed == expected);
      std::vector<T> unpacked(count, T{42});
      UnpackBits(packed.data(), count, bits, unpacked.data());
      const T mask = bits == 0 ? T{0} : static_cast<T>(~T{0}) >> (8 * sizeof(T) - bits);
      for (T& number : numbers) number &= mask;
      CHECK(unpacked == numbers);
    }
  }
}

TEST_CASE("Numbers of every width pack as the format says, and come back") {
  CheckAll<uint32_t>();
  CheckAll<uint64_t>();
}

}  // namespace
}  // namespace lockstep::kernels
