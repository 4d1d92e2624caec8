// The optimizer's inner loop: one pass over a run of weights that draws a gradient, takes the Adam step on fp32 masters
// and writes the published encoding straight to where it is published. 26 bytes of memory traffic per bf16 weight and
// step.
//
// The gradient of weight i at step t is g = mean_i + noise_it with mean ~ N(0, 0.5²) fixed for the run and noise ~
// N(0, 1) fresh. With Adam (0.9, 0.999) at lr 1e-6 the share of bf16 weights that flip then falls from step to step as
// it does in real runs: by half until step 8, by another tenth until step 40. Its size goes with lr / sigma: 4.1 % at
// step 1 for weights N(0, 0.02²), 2.3 % for N(0, 0.04²); adam_test.cc holds the figures.
//
// Thread-safe: functions of their arguments. Bit-identical on every CPU (no fused multiply-adds, IEEE division and
// root).
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/model/dtype.h"

namespace lockstep::demo {

inline constexpr float kBeta1 = 0.9f;
inline constexpr float kBeta2 = 0.999f;
inline constexpr float kEpsilon = 1e-8f;
inline constexpr float kMeanGradient = 0.5f;  // spread of a weight's own mean, in deviations of its noise

// What is the same for all weights of one tensor in one step.
struct AdamStep {
  float step_size = 0;          // lr / (1 - beta1^t)
  float second_correction = 0;  // 1 / (1 - beta2^t)
  uint32_t mean_seed = 0;       // of the tensor
  uint32_t noise_seed = 0;      // of the tensor and the step
  float mean_gradient = kMeanGradient;
};

// REQUIRES step >= 1.
AdamStep MakeAdamStep(double learning_rate, uint64_t step, uint32_t mean_seed, uint32_t noise_seed);

// `count` consecutive weights of a tensor, the first being its element `index`.
struct WeightRun {
  float* master = nullptr;
  float* first_moment = nullptr;
  float* second_moment = nullptr;
  uint32_t index = 0;
  size_t count = 0;
};

// bf16, f16 and f32: what the trainer can train.
bool IsTrainable(model::DType dtype);

// Steps `run` and writes its `count` encoded weights to `published`, which is aligned to the encoding. Returns how many
// of them changed as published. REQUIRES IsTrainable(dtype).
uint64_t StepAndEncode(model::DType dtype, const AdamStep& step, const WeightRun& run, void* published);

// Writes masters as they are.
void Encode(model::DType dtype, const float* masters, size_t count, void* published);

// Reads published weights back as masters. bf16 weights get back, at random, the 16 bits that rounding took from them:
// a checkpoint in bf16 is what is left of fp32 masters, and masters that all sat in the middle of their rounding
// interval would not flip for many steps. Encode(Decode(x)) is x; only signalling NaNs become quiet.
void Decode(model::DType dtype, const void* published, size_t count, uint32_t seed, uint32_t index, float* masters);

}  // namespace lockstep::demo
