// The model of the benchmarks: a Qwen3 of any size.
#pragma once

#include <cstdint>
#include <memory>

#include "common/model/layout.h"

namespace lockstep::bench {

// Tensors of Qwen3's shape, about `bytes` in bf16, tied; with 3.04e9 it has 1.52 G elements in 24 layers.
std::shared_ptr<const model::ModelLayout> QwenLayout(uint64_t bytes);

}  // namespace lockstep::bench
