#include "deploy/demo_trainer/adam.h"

#include <cmath>
#include <cstring>

#include "deploy/demo_trainer/encoding.h"
#include "deploy/demo_trainer/noise.h"

namespace lockstep::demo {
namespace {

template <typename Encoding>
[[gnu::always_inline]] inline uint64_t StepLoop(const AdamStep& step, const WeightRun& run,
                                                typename Encoding::Bits* __restrict published) {
  float* __restrict master = run.master;
  float* __restrict first = run.first_moment;
  float* __restrict second = run.second_moment;
  const AdamStep s = step;
  uint32_t changed = 0;
  for (size_t i = 0; i < run.count; ++i) {
    const uint32_t index = run.index + static_cast<uint32_t>(i);
    const float gradient = s.mean_gradient * QuickNormal(s.mean_seed, index) + QuickNormal(s.noise_seed, index);
    const float m = kBeta1 * first[i] + (1.0f - kBeta1) * gradient;
    const float v = kBeta2 * second[i] + (1.0f - kBeta2) * (gradient * gradient);
    const float before = master[i];
    const float after = before - s.step_size * m / (std::sqrt(v * s.second_correction) + kEpsilon);
    first[i] = m;
    second[i] = v;
    master[i] = after;
    const auto bits = Encoding::Encode(after);
    changed += bits != Encoding::Encode(before) ? 1 : 0;
    published[i] = bits;
  }
  return changed;
}

template <typename Encoding>
[[gnu::always_inline]] inline void EncodeLoop(const float* __restrict masters, size_t count,
                                              typename Encoding::Bits* __restrict published) {
  for (size_t i = 0; i < count; ++i) published[i] = Encoding::Encode(masters[i]);
}

template <typename Encoding>
void DecodeLoop(const void* published, size_t count, float* masters) {
  typename Encoding::Bits bits;  // a file's data section may start at any byte
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(&bits, static_cast<const std::byte*>(published) + i * sizeof bits, sizeof bits);
    masters[i] = Encoding::Decode(bits);
  }
}

// Zero stays zero (a weight that was pruned or padded), infinities and NaNs stay themselves.
void RestoreLowBits(uint32_t seed, uint32_t index, size_t count, float* masters) {
  for (size_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<uint32_t>(masters[i]);
    const uint32_t magnitude = bits & kF32Magnitude;
    if (magnitude == 0 || magnitude >= kF32Infinity) continue;
    const uint32_t drawn =
        HashAt(seed, index + static_cast<uint32_t>(i)) % 0xffffu;  // 0 .. 65534, the middle being 32767
    masters[i] = std::bit_cast<float>(bits + drawn - 0x7fffu);
  }
}

// The loops once more for each instruction set worth having; the compiler does the rest.
using StepFn = uint64_t (*)(model::DType, const AdamStep&, const WeightRun&, void*);
using EncodeFn = void (*)(model::DType, const float*, size_t, void*);
struct Kernels {
  StepFn step;
  EncodeFn encode;
};

#define LS_DEMO_KERNELS(Name, ...)                                                                                   \
  __VA_ARGS__ uint64_t Step##Name(model::DType dtype, const AdamStep& step, const WeightRun& run, void* published) { \
    if (dtype == model::DType::kBF16) return StepLoop<BF16>(step, run, static_cast<uint16_t*>(published));           \
    if (dtype == model::DType::kF16) return StepLoop<F16>(step, run, static_cast<uint16_t*>(published));             \
    return StepLoop<F32>(step, run, static_cast<uint32_t*>(published));                                              \
  }                                                                                                                  \
  __VA_ARGS__ void Encode##Name(model::DType dtype, const float* masters, size_t count, void* published) {           \
    if (dtype == model::DType::kBF16) return EncodeLoop<BF16>(masters, count, static_cast<uint16_t*>(published));    \
    if (dtype == model::DType::kF16) return EncodeLoop<F16>(masters, count, static_cast<uint16_t*>(published));      \
    return EncodeLoop<F32>(masters, count, static_cast<uint32_t*>(published));                                       \
  }

LS_DEMO_KERNELS(Portable)

#if defined(__x86_64__)
LS_DEMO_KERNELS(Avx2, [[gnu::target("avx2")]])
LS_DEMO_KERNELS(Avx512, [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]])

Kernels ChooseKernels() {
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return {StepAvx512, EncodeAvx512};
  }
  if (__builtin_cpu_supports("avx2")) return {StepAvx2, EncodeAvx2};
  return {StepPortable, EncodePortable};
}
#else
Kernels ChooseKernels() {
  return {StepPortable, EncodePortable};
}
#endif

const Kernels& ThisMachine() {
  static const Kernels kernels = ChooseKernels();
  return kernels;
}

}  // namespace

AdamStep MakeAdamStep(double learning_rate, uint64_t step, uint32_t mean_seed, uint32_t noise_seed) {
  const auto t = static_cast<double>(step);
  return {.step_size = static_cast<float>(learning_rate / (1.0 - std::pow(kBeta1, t))),
          .second_correction = static_cast<float>(1.0 / (1.0 - std::pow(kBeta2, t))),
          .mean_seed = mean_seed,
          .noise_seed = noise_seed};
}

bool IsTrainable(model::DType dtype) {
  return dtype == model::DType::kBF16 || dtype == model::DType::kF16 || dtype == model::DType::kF32;
}

uint64_t StepAndEncode(model::DType dtype, const AdamStep& step, const WeightRun& run, void* published) {
  return ThisMachine().step(dtype, step, run, published);
}

void Encode(model::DType dtype, const float* masters, size_t count, void* published) {
  ThisMachine().encode(dtype, masters, count, published);
}

void Decode(model::DType dtype, const void* published, size_t count, uint32_t seed, uint32_t index, float* masters) {
  if (dtype == model::DType::kF32) return DecodeLoop<F32>(published, count, masters);
  if (dtype == model::DType::kF16) return DecodeLoop<F16>(published, count, masters);
  DecodeLoop<BF16>(published, count, masters);
  RestoreLowBits(seed, index, count, masters);
}

}  // namespace lockstep::demo
