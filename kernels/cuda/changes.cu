#include "kernels/cuda/changes.h"
#include "kernels/cuda/launch.h"

namespace lockstep::kernels::cuda {
namespace {

template <typename T>
struct Plain {
  using Unit = T;
  using Element = T;
  __device__ static T Of(T element) { return element; }
};

struct Rounded {
  using Unit = uint16_t;
  using Element = uint32_t;
  __device__ static uint16_t Of(uint32_t bits) {
    if ((bits & 0x7fff'ffff) > 0x7f80'0000) return 0x7fc0;
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
};

__device__ uint64_t StripeEnd(uint64_t stripe, uint64_t units) {
  const uint64_t end = (stripe + 1) * kStripeUnits;
  return end < units ? end : units;
}

template <typename Kind>
__global__ void CountStripe(const typename Kind::Element* tensor, const typename Kind::Unit* shadow, uint64_t units,
                            uint32_t* counts) {
  const uint64_t stripe = ThreadIndex();
  if (stripe * kStripeUnits >= units) return;
  uint32_t count = 0;
  for (uint64_t i = stripe * kStripeUnits; i < StripeEnd(stripe, units); ++i) count += Kind::Of(tensor[i]) != shadow[i];
  counts[stripe] = count;
}

template <typename Kind>
__global__ void TakeStripe(const typename Kind::Element* tensor, typename Kind::Unit* shadow, uint64_t units,
                           const uint64_t* firsts, uint32_t* positions, typename Kind::Unit* values) {
  const uint64_t stripe = ThreadIndex();
  if (stripe * kStripeUnits >= units) return;
  uint64_t at = firsts[stripe];
  const uint64_t end = firsts[stripe + 1];
  for (uint64_t i = stripe * kStripeUnits; i < StripeEnd(stripe, units) && at < end; ++i) {
    const typename Kind::Unit value = Kind::Of(tensor[i]);
    if (value == shadow[i]) continue;
    shadow[i] = value;
    positions[at] = static_cast<uint32_t>(i);
    values[at++] = value;
  }
}

template <typename Body>
cudaError_t WithKind(const Shadowed& shadowed, const Body& body) {
  if (shadowed.rounds) return shadowed.unit == 2 ? body(Rounded{}) : cudaErrorInvalidValue;
  switch (shadowed.unit) {
    case 1:
      return body(Plain<uint8_t>{});
    case 2:
      return body(Plain<uint16_t>{});
    case 4:
      return body(Plain<uint32_t>{});
    case 8:
      return body(Plain<uint64_t>{});
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t StartCount(const Shadowed& shadowed, uint32_t* counts, cudaStream_t stream) {
  return WithKind(shadowed, [&](auto kind) {
    using Kind = decltype(kind);
    using Unit = typename Kind::Unit;
    return Launch("CountStripe", CountStripe<Kind>, StripesOf(shadowed.units), stream,
                  static_cast<const typename Kind::Element*>(shadowed.tensor),
                  static_cast<const Unit*>(shadowed.shadow), shadowed.units, counts);
  });
}

cudaError_t StartTake(const Shadowed& shadowed, const uint64_t* firsts, uint32_t* positions, void* values,
                      cudaStream_t stream) {
  return WithKind(shadowed, [&](auto kind) {
    using Kind = decltype(kind);
    using Unit = typename Kind::Unit;
    return Launch("TakeStripe", TakeStripe<Kind>, StripesOf(shadowed.units), stream,
                  static_cast<const typename Kind::Element*>(shadowed.tensor), static_cast<Unit*>(shadowed.shadow),
                  shadowed.units, firsts, positions, static_cast<Unit*>(values));
  });
}

}  // namespace lockstep::kernels::cuda
