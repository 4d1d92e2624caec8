#include "kernels/quantise.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/each_target.h"

// The oracles are scalar and do nothing clever: they look for the nearest value among all of a type. Quantisers of
// others are compared in tests/derive.
namespace lockstep::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The magnitudes that a type has, rising; the code of each is its index.
std::vector<double> Magnitudes(int exponent_bits, int mantissa_bits, int bias, size_t count) {
  std::vector<double> all;
  for (int code = 0; code < 1 << (exponent_bits + mantissa_bits); ++code) {
    const int exponent = code >> mantissa_bits;
    const int fraction = code & ((1 << mantissa_bits) - 1);
    const int whole = exponent == 0 ? fraction : fraction + (1 << mantissa_bits);
    all.push_back(std::ldexp(whole, std::max(exponent, 1) - bias - mantissa_bits));
  }
  all.resize(count);
  return all;
}

const std::vector<double>& E4M3() {
  static const std::vector<double> all = Magnitudes(4, 3, 7, 127);  // 0x7f is NaN
  return all;
}

const std::vector<double>& E2M1() {
  static const std::vector<double> all = Magnitudes(2, 1, 1, 8);
  return all;
}

// The code of the magnitude nearest to |x|, of two the even one.
uint8_t Nearest(const std::vector<double>& all, double x) {
  x = std::fabs(x);
  const auto above = std::lower_bound(all.begin(), all.end(), x);
  if (above == all.begin()) return 0;
  const auto code = static_cast<uint8_t>(above - all.begin());
  if (above == all.end()) return static_cast<uint8_t>(code - 1);
  const double down = x - above[-1];
  const double up = *above - x;
  return down < up || (down == up && code % 2 == 1) ? static_cast<uint8_t>(code - 1) : code;
}

uint8_t ToE4M3(float x) {
  if (std::isnan(x)) return 0x7f;
  return static_cast<uint8_t>(Nearest(E4M3(), x) | (std::signbit(x) ? 0x80 : 0));
}

float FromE4M3(uint8_t code) {
  return code == 0x7f ? kNan : static_cast<float>(E4M3()[code]);
}

uint8_t ToE2M1(float x) {
  if (std::isnan(x)) return 0;
  return static_cast<uint8_t>(Nearest(E2M1(), x) | (std::signbit(x) ? 8 : 0));
}

// --- a matrix, and the float of each of its elements ---

float FromF16(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  const double magnitude = exponent == 31  ? (fraction == 0 ? kInfinity : kNan)
                           : exponent == 0 ? std::ldexp(fraction, -24)
                                           : std::ldexp(fraction + 1024, exponent - 25);
  return static_cast<float>((bits & 0x8000) != 0 ? -magnitude : magnitude);
}

struct Matrix {
  FloatType type;
  size_t rows, columns;
  std::vector<uint8_t> bytes;
  std::vector<float> values;

  Matrix(FloatType its_type, size_t its_rows, size_t its_columns)
      : type(its_type), rows(its_rows), columns(its_columns) {
    values.resize(rows * columns);
    bytes.resize(rows * columns * (type == FloatType::kF32 ? 4 : 2));
  }
  // Sets element `i` to the float with these bits, or to that of their upper half.
  void Set(size_t i, uint32_t bits) {
    if (type == FloatType::kF32) {
      std::memcpy(&bytes[4 * i], &bits, 4);
      values[i] = std::bit_cast<float>(bits);
      return;
    }
    const auto half = static_cast<uint16_t>(bits >> 16);
    std::memcpy(&bytes[2 * i], &half, 2);
    values[i] = type == FloatType::kF16 ? FromF16(half) : std::bit_cast<float>(uint32_t{half} << 16);
  }
  FloatRows view() const { return {bytes.data(), type, rows, columns}; }
  float Most(size_t row, size_t column, size_t height, size_t width) const {
    float most = 0;
    for (size_t r = row; r < std::min(row + height, rows); ++r) {
      for (size_t c = column; c < std::min(column + width, columns); ++c) {
        const float x = std::fabs(values[r * columns + c]);
        if (std::isnan(x) || std::isnan(most))
          most = kNan;
        else
          most = std::max(most, x);
      }
    }
    return most;
  }
};

constexpr FloatType kTypes[] = {FloatType::kF32, FloatType::kF16, FloatType::kBF16};

// What weights are like, with the odd ones among them: zeros, subnormals, large and tiny blocks, infinity and NaN.
Matrix Weights(FloatType type, size_t rows, size_t columns, uint64_t seed, bool not_finite) {
  Matrix matrix(type, rows, columns);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 0.02f);
  for (size_t i = 0; i < matrix.values.size(); ++i) {
    const size_t stripe = i / std::max<size_t>(columns, 1) / 16 % 8 + (i % std::max<size_t>(columns, 1)) / 128 % 3;
    float x = normal(random);
    if (stripe == 1) x = 0;
    if (stripe == 2) x *= 1e-6f;
    if (stripe == 3) x *= 1e4f;
    if (stripe == 4) x = std::ldexp(x, -130);
    if (stripe == 5 && random() % 500 == 0) x = -0.0f;
    auto bits = std::bit_cast<uint32_t>(x);
    if (type == FloatType::kF16) bits = static_cast<uint32_t>(random() % 0x7c00 | (random() % 2) << 15) << 16;
    if (type == FloatType::kF16 && stripe == 1) bits = 0;
    if (type == FloatType::kF16 && stripe == 4) bits &= 0x83ff'0000;
    if (not_finite && random() % 3000 == 0) {
      constexpr uint32_t kOdd[] = {0x7f80'0000, 0xff80'0000, 0x7fc0'0000, 0xffff'0000};
      bits = kOdd[random() % 4];
      if (type == FloatType::kF16) bits = (bits & 0x8000'0000) | (random() % 2 == 0 ? 0x7c00'0000 : 0x7e01'0000);
    }
    matrix.Set(i, bits);
  }
  return matrix;
}

uint32_t Bits(float x) {
  return std::isnan(x) ? 0x7fc0'0000 : std::bit_cast<uint32_t>(x);
}

std::vector<uint32_t> Bits(const std::vector<float>& all) {
  std::vector<uint32_t> bits;
  for (const float x : all) bits.push_back(std::bit_cast<uint32_t>(x));
  return bits;
}

// Where two lists differ first: a failure is no page of bytes. Empty: nowhere.
template <typename T>
std::string Difference(const std::vector<T>& is, const std::vector<T>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (is[i] == expected[i]) continue;
    return "element " + std::to_string(i) + " is " + std::to_string(is[i]) + ", not " + std::to_string(expected[i]);
  }
  return "";
}

// --- tests ---

TEST_CASE("Every half rounds to E4M3 and E2M1 as the nearest value does, on every target") {
  for (const FloatType type : {FloatType::kF16, FloatType::kBF16}) {
    Matrix all(type, 512, 128);
    for (uint32_t i = 0; i < 0x1'0000; ++i) all.Set(i, i << 16);
    std::vector<uint8_t> expected(all.values.size());
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = ToE4M3(all.values[i]);
    ForEachTarget([&] {
      std::vector<uint8_t> values(expected.size());
      QuantiseFp8(all.view(), 1, values.data());
      CHECK(Difference(values, expected) == "");
    });
  }
}

TEST_CASE("Floats next to and at the middle of two values round to the nearest, of two to the even one") {
  std::vector<float> edges;
  for (const std::vector<double>* all : {&E4M3(), &E2M1()}) {
    for (size_t i = 0; i + 1 < all->size(); ++i) {
      const auto middle = static_cast<float>(((*all)[i] + (*all)[i + 1]) / 2);
      for (const float x : {middle, static_cast<float>((*all)[i])}) {
        for (const float sign : {1.f, -1.f}) {
          edges.push_back(sign * x);
          edges.push_back(std::nextafter(sign * x, kInfinity));
          edges.push_back(std::nextafter(sign * x, -kInfinity));
        }
      }
    }
  }
  for (const float x :
       {464.f, std::nextafter(464.f, kInfinity), kInfinity, -kInfinity, kNan, std::numeric_limits<float>::denorm_min()})
    edges.push_back(x);
  edges.resize((edges.size() + 15) / 16 * 16);
  Matrix matrix(FloatType::kF32, 1, edges.size());
  for (size_t i = 0; i < edges.size(); ++i) matrix.Set(i, std::bit_cast<uint32_t>(edges[i]));
  ForEachTarget([&] {
    std::vector<uint8_t> values(edges.size());
    QuantiseFp8(matrix.view(), 1, values.data());
    for (size_t i = 0; i < edges.size(); ++i) {
      INFO(edges[i]);
      CHECK(int{values[i]} == int{ToE4M3(edges[i])});
    }
  });
}

TEST_CASE("The largest magnitude is that of all elements, and NaN where one is") {
  for (const FloatType type : kTypes) {
    for (const size_t columns : {0, 1, 15, 64, 777}) {
      for (const bool not_finite : {false, true}) {
        const Matrix matrix = Weights(type, 40, columns, columns, not_finite);
        ForEachTarget([&] { CHECK(Bits(AbsMax(matrix.view())) == Bits(matrix.Most(0, 0, 40, columns))); });
      }
    }
  }
}

struct Shape {
  size_t rows, columns;
};

TEST_CASE("Blocks of FP8 have the scales and values of their definition, whatever the shape, on every target") {
  for (const Shape shape :
       {Shape{1, 1}, Shape{128, 128}, Shape{130, 257}, Shape{127, 129}, Shape{300, 64}, Shape{5, 1000}}) {
    for (const FloatType type : kTypes) {
      for (const BlockScale kind : {BlockScale::kExact, BlockScale::kPowerOfTwo}) {
        for (const bool not_finite : {false, true}) {
          const Matrix matrix = Weights(type, shape.rows, shape.columns, shape.rows, not_finite);
          std::vector<float> scales;
          std::vector<uint8_t> values(matrix.values.size());
          for (size_t row = 0; row < shape.rows; row += 128) {
            for (size_t column = 0; column < shape.columns; column += 128) {
              const float most = matrix.Most(row, column, 128, 128);
              float scale = most < 1e-4f ? 1e-4f / 448 : most / 448;
              if (kind == BlockScale::kPowerOfTwo && std::isfinite(scale)) {
                int exponent = 0;
                scale = std::frexp(scale, &exponent) == 0.5f ? scale : std::ldexp(1.f, exponent);
              }
              scales.push_back(std::bit_cast<float>(Bits(scale)));
              for (size_t r = row; r < std::min(row + 128, shape.rows); ++r) {
                for (size_t c = column; c < std::min(column + 128, shape.columns); ++c) {
                  values[r * shape.columns + c] = ToE4M3(matrix.values[r * shape.columns + c] * (1 / scale));
                }
              }
            }
          }
          ForEachTarget([&] {
            INFO(shape.rows << " x " << shape.columns);
            std::vector<float> its_scales(scales.size());
            std::vector<uint8_t> its_values(values.size());
            QuantiseFp8Blocks(matrix.view(), kind, its_values.data(), its_scales.data());
            CHECK(Difference(Bits(its_scales), Bits(scales)) == "");
            CHECK(Difference(its_values, values) == "");
          });
        }
      }
    }
  }
}

TEST_CASE("Rows of FP8 have the scales and values of their definition, on every target") {
  for (const FloatType type : kTypes) {
    for (const bool not_finite : {false, true}) {
      const Matrix matrix = Weights(type, 130, 333, 7, not_finite);
      std::vector<float> scales;
      std::vector<uint8_t> values;
      for (size_t row = 0; row < matrix.rows; ++row) {
        const float most = matrix.Most(row, 0, 1, matrix.columns);
        scales.push_back(std::bit_cast<float>(Bits(most / 448 == 0 ? std::ldexp(1.f, -23) : most / 448)));
        for (size_t c = 0; c < matrix.columns; ++c)
          values.push_back(ToE4M3(matrix.values[row * 333 + c] / scales.back()));
      }
      ForEachTarget([&] {
        std::vector<float> its_scales(scales.size());
        std::vector<uint8_t> its_values(values.size());
        QuantiseFp8Rows(matrix.view(), its_values.data(), its_scales.data());
        CHECK(Difference(Bits(its_scales), Bits(scales)) == "");
        CHECK(Difference(its_values, values) == "");
      });
    }
  }
}

TEST_CASE("Groups of MXFP8 have the scales and values of their definition, on every target") {
  for (const FloatType type : kTypes) {
    for (const bool not_finite : {false, true}) {
      const Matrix matrix = Weights(type, 130, 96, 9, not_finite);
      std::vector<uint8_t> scales;
      std::vector<uint8_t> values;
      for (size_t group = 0; group < matrix.values.size() / 32; ++group) {
        const float most = matrix.Most(group / 3, group % 3 * 32, 1, 32);
        int scale = 255;
        if (!std::isnan(most)) {
          const float ratio = std::max(most, std::numeric_limits<float>::min()) / 448;
          for (scale = 0; scale < 254 && std::ldexp(1.0, scale - 127) < ratio;) ++scale;
        }
        scales.push_back(static_cast<uint8_t>(scale));
        for (size_t i = 0; i < 32; ++i) {
          const float x = matrix.values[group * 32 + i];
          values.push_back(std::isnan(most) ? 0x7f : ToE4M3(static_cast<float>(std::ldexp(double{x}, 127 - scale))));
        }
      }
      ForEachTarget([&] {
        std::vector<uint8_t> its_scales(scales.size());
        std::vector<uint8_t> its_values(values.size());
        QuantiseMxfp8(matrix.view(), its_values.data(), its_scales.data());
        CHECK(Difference(its_scales, scales) == "");
        CHECK(Difference(its_values, values) == "");
      });
    }
  }
}

TEST_CASE("Groups of NVFP4 have the scales and values of their definition, on every target") {
  for (const FloatType type : kTypes) {
    for (const bool not_finite : {false, true}) {
      const Matrix matrix = Weights(type, 130, 80, 11, not_finite);
      const float global = Nvfp4GlobalScale(AbsMax(matrix.view()));
      CHECK((!not_finite || global == 1));
      std::vector<uint8_t> scales;
      std::vector<uint8_t> values;
      for (size_t group = 0; group < matrix.values.size() / 16; ++group) {
        const float most = matrix.Most(group / 5, group % 5 * 16, 1, 16);
        const float wanted = global * (most * (1.0f / 6));
        scales.push_back(std::isnan(wanted) ? 0x7f : ToE4M3(std::min(wanted, 448.f)));
        const float step = FromE4M3(scales.back()) * (global == 0 ? 1e-8f : 1 / global);
        const float by = step == 0 ? 1e-8f : 1 / step;
        for (size_t i = 0; i < 16; i += 2) {
          const float* const pair = &matrix.values[group * 16 + i];
          values.push_back(static_cast<uint8_t>(ToE2M1(pair[0] * by) | ToE2M1(pair[1] * by) << 4));
        }
      }
      ForEachTarget([&] {
        std::vector<uint8_t> its_scales(scales.size());
        std::vector<uint8_t> its_values(values.size());
        QuantiseNvfp4(matrix.view(), global, its_values.data(), its_scales.data());
        CHECK(Difference(its_scales, scales) == "");
        CHECK(Difference(its_values, values) == "");
      });
    }
  }
}

TEST_CASE("Scales of whole tensors: of nothing, of subnormals, of what is not finite") {
  CHECK(Fp8Scale(448) == 1);
  CHECK(Fp8Scale(0) == std::numeric_limits<float>::epsilon());
  CHECK(Bits(Fp8Scale(kNan)) == 0x7fc0'0000);
  CHECK(Nvfp4GlobalScale(2688) == 1);
  CHECK(Nvfp4GlobalScale(0) == 1);
  CHECK(Nvfp4GlobalScale(kNan) == 1);
  CHECK(Nvfp4GlobalScale(kInfinity) == 0);
}

}  // namespace
}  // namespace lockstep::kernels
