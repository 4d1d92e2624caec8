#include "kernels/cuda/changes.h"
#include "kernels/cuda/elements.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr uint64_t kStripeGroups = kStripeUnits / kGroupUnits;
constexpr uint64_t kRegionStripes = kRegionUnits / kStripeUnits;

constexpr uint64_t StripesOfGroups(uint64_t groups) {
  return StripesOf(groups * kGroupUnits);
}

struct alignas(16) Units {
  uint16_t of[kGroupUnits];
};
struct alignas(16) Masters {
  uint32_t of[kGroupUnits];
};

__device__ bool IsAligned(const char* address) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}

template <bool kRounds>
__device__ uint16_t UnitAt(const char* address) {
  return kRounds ? BF16OfF32(Load<uint32_t>(address)) : Load<uint16_t>(address);
}

// A whole group that lies side by side.
template <bool kRounds>
__device__ Units LoadAligned(const char* address) {
  if (!kRounds) return *reinterpret_cast<const Units*>(address);
  const Masters masters = *reinterpret_cast<const Masters*>(address);
  Units units;
  for (uint64_t i = 0; i < kGroupUnits; ++i) units.of[i] = BF16OfF32(masters.of[i]);
  return units;
}

// The `count` units of the piece from `first` on.
template <bool kRounds>
__device__ Units LoadGroup(const Piece& piece, uint64_t first, uint64_t count) {
  constexpr uint64_t kElement = kRounds ? 4 : 2;
  const uint64_t row = first / piece.row_units;
  uint64_t column = first % piece.row_units;
  const char* begin = static_cast<const char*>(piece.rows) + row * piece.pitch;
  const char* at = begin + column * kElement;
  if (count == kGroupUnits && column + count <= piece.row_units && IsAligned(at)) return LoadAligned<kRounds>(at);
  Units units = {};
  for (uint64_t i = 0; i < count; ++i) {
    units.of[i] = UnitAt<kRounds>(at);
    at += kElement;
    if (++column < piece.row_units) continue;
    column = 0;
    begin += piece.pitch;
    at = begin;
  }
  return units;
}

template <bool kRounds>
__global__ void CompareGroup(Piece piece) {
  const uint64_t group = ThreadIndex();
  const uint64_t first = group * kGroupUnits;
  if (first >= piece.units) return;
  const uint64_t left = piece.units - first;
  const uint64_t count = left < kGroupUnits ? left : kGroupUnits;
  Units* const shadow = static_cast<Units*>(piece.shadow) + group;
  const Units now = LoadGroup<kRounds>(piece, first, count);
  const Units then = *shadow;
  unsigned changed = 0;
  for (uint64_t i = 0; i < count; ++i) changed |= static_cast<unsigned>(now.of[i] != then.of[i]) << i;
  if (changed != 0) *shadow = now;
  piece.either[group] = static_cast<uint8_t>(piece.marks[group] | changed);
  piece.marks[group] = static_cast<uint8_t>(changed);
}

__global__ void CountStripe(const uint8_t* either, uint64_t groups, uint32_t* stripe_counts) {
  const uint64_t stripe = ThreadIndex();
  const uint64_t begin = stripe * kStripeGroups;
  if (begin >= groups) return;
  const uint64_t end = begin + kStripeGroups < groups ? begin + kStripeGroups : groups;
  uint32_t count = 0;
  for (uint64_t group = begin; group < end; ++group) {
    for (unsigned bits = either[group]; bits != 0; bits &= bits - 1) ++count;
  }
  stripe_counts[stripe] = count;
}

// The counts of a region's stripes become sums of those before.
__global__ void SumRegion(uint64_t stripes, uint32_t* stripe_firsts, uint32_t* region_counts) {
  const uint64_t region = ThreadIndex();
  const uint64_t begin = region * kRegionStripes;
  if (begin >= stripes) return;
  const uint64_t end = begin + kRegionStripes < stripes ? begin + kRegionStripes : stripes;
  uint32_t sum = 0;
  for (uint64_t stripe = begin; stripe < end; ++stripe) {
    const uint32_t count = stripe_firsts[stripe];
    stripe_firsts[stripe] = sum;
    sum += count;
  }
  region_counts[region] = sum;
}

__global__ void TakeStripe(const uint8_t* either, uint64_t groups, const uint16_t* shadow,
                           const uint32_t* region_firsts, const uint32_t* stripe_firsts, Change* changes) {
  const uint64_t stripe = ThreadIndex();
  const uint64_t begin = stripe * kStripeGroups;
  if (begin >= groups) return;
  const uint64_t end = begin + kStripeGroups < groups ? begin + kStripeGroups : groups;
  Change* change = changes + region_firsts[stripe / kRegionStripes] + stripe_firsts[stripe];
  for (uint64_t group = begin; group < end; ++group) {
    const unsigned bits = either[group];
    for (uint64_t i = 0; bits >> i != 0; ++i) {
      if ((bits >> i & 1) == 0) continue;
      const uint64_t unit = group * kGroupUnits + i;
      change->place = static_cast<uint16_t>(unit % kRegionUnits);
      change->unit = shadow[unit];
      ++change;
    }
  }
}

}  // namespace

cudaError_t LoadChanges() {
  return LoadKernels(CompareGroup<true>, CompareGroup<false>, CountStripe, SumRegion, TakeStripe);
}

cudaError_t StartCompare(const Piece& piece, cudaStream_t stream) {
  if (piece.units == 0) return cudaSuccess;
  return Launch("CompareGroup", piece.rounds ? CompareGroup<true> : CompareGroup<false>, GroupsOf(piece.units), stream,
                piece);
}

cudaError_t StartCount(const uint8_t* either, uint64_t groups, uint32_t* region_counts, uint32_t* stripe_firsts,
                       cudaStream_t stream) {
  const uint64_t stripes = StripesOfGroups(groups);
  const cudaError_t error = Launch("CountStripe", CountStripe, stripes, stream, either, groups, stripe_firsts);
  if (error != cudaSuccess) return error;
  return Launch("SumRegion", SumRegion, RegionsOf(groups * kGroupUnits), stream, stripes, stripe_firsts, region_counts);
}

cudaError_t StartTake(const uint8_t* either, uint64_t groups, const void* shadow, const uint32_t* region_firsts,
                      const uint32_t* stripe_firsts, Change* changes, cudaStream_t stream) {
  return Launch("TakeStripe", TakeStripe, StripesOfGroups(groups), stream, either, groups,
                static_cast<const uint16_t*>(shadow), region_firsts, stripe_firsts, changes);
}

}  // namespace lockstep::kernels::cuda
