#include "kernels/cuda/changes.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/copy_rows_scalar.h"
#include "tests/cuda/stand_in.h"

namespace lockstep::kernels::cuda {
namespace {

// A packed share; its arrays are exactly as large as the contract wants them, so that a sanitizer sees what is written
// past them.
struct Share {
  explicit Share(uint64_t units)
      : shadow(GroupsOf(units) * kGroupUnits), marks(GroupsOf(units)), either(marks.size()) {}

  // The piece that is kept from group `group` on.
  Piece At(uint64_t group, Piece piece) {
    piece.shadow = shadow.data() + group * kGroupUnits;
    piece.marks = marks.data() + group;
    piece.either = either.data() + group;
    return piece;
  }

  std::vector<uint16_t> shadow;
  std::vector<uint8_t> marks;
  std::vector<uint8_t> either;
};

// By unit of the share, what is taken there; -1: nothing.
std::vector<int> Take(const Share& share) {
  const uint64_t groups = share.either.size();
  std::vector<uint32_t> counts(RegionsOf(groups * kGroupUnits), 0xdead);
  std::vector<uint32_t> stripe_firsts(StripesOf(groups * kGroupUnits), 0xdead);
  REQUIRE(StartCount(share.either.data(), groups, counts.data(), stripe_firsts.data(), nullptr) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  std::vector<uint32_t> firsts(1, 0);
  for (const uint32_t count : counts) firsts.push_back(firsts.back() + count);
  std::vector<Change> changes(firsts.back());
  REQUIRE(StartTake(share.either.data(), groups, share.shadow.data(), firsts.data(), stripe_firsts.data(),
                    changes.data(), nullptr) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  std::vector<int> taken(groups * kGroupUnits, -1);
  for (size_t region = 0; region < counts.size(); ++region) {
    int last = -1;
    for (uint32_t i = firsts[region]; i < firsts[region + 1]; ++i) {
      CHECK(int{changes[i].place} > last);
      last = changes[i].place;
      taken.at(region * kRegionUnits + changes[i].place) = changes[i].unit;
    }
  }
  return taken;
}

void Compare(const Piece& piece) {
  REQUIRE(StartCompare(piece, nullptr) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
}

struct Shape {
  uint64_t rows;
  uint64_t row_units;
  uint64_t extra_pitch;
  size_t at;  // in bytes, of the first row
};

const Shape kShapes[] = {{1, 1, 0, 0},     {1, 7, 0, 4},     {1, 8, 0, 0},     {1, 513, 0, 2},
                         {3, 257, 6, 1},   {700, 1, 3, 0},   {50, 9, 2, 0},    {40, 16, 0, 8},
                         {1, 65536, 0, 0}, {1, 70001, 0, 2}, {9, 16384, 64, 0}};

// A tensor's rows and what they are as units, kept by the oracle.
class Tensor {
 public:
  Tensor(const Shape& shape, bool rounds, std::mt19937_64& random) : shape_(shape), rounds_(rounds), random_(random) {
    memory_.resize(shape.at + (shape.rows - 1) * pitch() + shape.row_units * element());
    for (char& byte : memory_) byte = static_cast<char>(random());
  }

  Piece piece() const {
    return {.rows = memory_.data() + shape_.at,
            .pitch = shape_.rows == 1 ? 0 : pitch(),
            .row_units = shape_.row_units,
            .units = shape_.rows * shape_.row_units,
            .rounds = rounds_};
  }
  void Change(double density) {
    std::bernoulli_distribution changes(density);
    for (uint64_t i = 0; i < piece().units; ++i) {
      if (!changes(random_)) continue;
      const auto bits = static_cast<uint32_t>(random_());
      std::memcpy(At(i), &bits, element());
    }
  }
  std::vector<uint16_t> units() {
    std::vector<uint16_t> units;
    for (uint64_t i = 0; i < piece().units; ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, At(i), element());
      units.push_back(rounds_ ? scalar::BF16OfF32(std::bit_cast<float>(bits)) : static_cast<uint16_t>(bits));
    }
    return units;
  }

 private:
  uint64_t element() const { return rounds_ ? 4 : 2; }
  uint64_t pitch() const { return shape_.row_units * element() + shape_.extra_pitch; }
  char* At(uint64_t unit) {
    return memory_.data() + shape_.at + unit / shape_.row_units * pitch() + unit % shape_.row_units * element();
  }

  const Shape shape_;
  const bool rounds_;
  std::mt19937_64& random_;
  std::vector<char> memory_;
};

TEST_CASE("What is taken is what changed since the time before last, as it is now, and the shadow is the tensor") {
  std::mt19937_64 random(3);
  for (const Shape& shape : kShapes) {
    for (const bool rounds : {false, true}) {
      lockstep::cuda::Reset();
      INFO(shape.rows << " rows of " << shape.row_units << ", rounds " << rounds);
      Tensor tensor(shape, rounds, random);
      Share share(tensor.piece().units);
      Compare(share.At(0, tensor.piece()));
      std::vector<uint16_t> last = tensor.units();
      std::vector<uint16_t> before = last;
      Compare(share.At(0, tensor.piece()));
      for (const double density : {0.0, 0.01, 0.0, 0.12, 1.0, 0.0, 0.0}) {
        before = std::exchange(last, tensor.units());
        tensor.Change(density);
        Compare(share.At(0, tensor.piece()));
        const std::vector<uint16_t> now = tensor.units();
        std::vector<int> expected(share.shadow.size(), -1);
        for (size_t i = 0; i < now.size(); ++i) {
          if (now[i] != last[i] || last[i] != before[i]) expected[i] = now[i];
        }
        CHECK(Take(share) == expected);
        CHECK(std::equal(now.begin(), now.end(), share.shadow.begin()));
      }
    }
  }
}

TEST_CASE("Masters are compared as they are rounded: what rounds to the same has not changed") {
  lockstep::cuda::Reset();
  std::vector<float> masters(1000, 1.0F);
  Share share(masters.size());
  const Piece piece = share.At(0, {.rows = masters.data(), .row_units = 1000, .units = 1000, .rounds = true});
  Compare(piece);
  Compare(piece);
  for (float& master : masters) master *= 1 + 1e-4F;
  masters[77] = 2;
  Compare(piece);
  const std::vector<int> taken = Take(share);
  CHECK(std::count(taken.begin(), taken.end(), -1) == 999);
  CHECK(taken[77] == 0x4000);
}

TEST_CASE("Pieces side by side are counted and taken as one share") {
  lockstep::cuda::Reset();
  std::mt19937_64 random(5);
  std::vector<Tensor> tensors;
  for (const Shape& shape : kShapes) tensors.emplace_back(shape, tensors.size() % 2 == 0, random);
  std::vector<uint64_t> groups(1, 0);
  for (const Tensor& tensor : tensors) groups.push_back(groups.back() + GroupsOf(tensor.piece().units));
  Share share(groups.back() * kGroupUnits);
  for (int time = 0; time < 2; ++time) {
    for (size_t i = 0; i < tensors.size(); ++i) Compare(share.At(groups[i], tensors[i].piece()));
  }
  std::vector<int> expected(share.shadow.size(), -1);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<uint16_t> last = tensors[i].units();
    tensors[i].Change(0.02);
    Compare(share.At(groups[i], tensors[i].piece()));
    const std::vector<uint16_t> now = tensors[i].units();
    for (size_t unit = 0; unit < now.size(); ++unit) {
      if (now[unit] != last[unit]) expected[groups[i] * kGroupUnits + unit] = now[unit];
    }
  }
  CHECK(Take(share) == expected);
}

TEST_CASE("Nothing is started for no units, and a failed launch is told") {
  lockstep::cuda::Reset();
  CHECK(StartCompare({}, nullptr) == cudaSuccess);
  CHECK(StartCount(nullptr, 0, nullptr, nullptr, nullptr) == cudaSuccess);
  CHECK(StartTake(nullptr, 0, nullptr, nullptr, nullptr, nullptr, nullptr) == cudaSuccess);
  CHECK(lockstep::cuda::Count().under_way == 0);
  lockstep::cuda::FailCall("CountStripe", 1, cudaErrorLaunchFailure);
  CHECK(StartCount(nullptr, 1, nullptr, nullptr, nullptr) == cudaErrorLaunchFailure);
}

}  // namespace
}  // namespace lockstep::kernels::cuda
