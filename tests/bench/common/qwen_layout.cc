#include "tests/bench/common/qwen_layout.h"

#include <algorithm>
#include <cmath>

#include "tests/bench/common/model_layouts.h"
#include "tests/bench/common/or_die.h"

namespace lockstep::bench {

std::shared_ptr<const model::ModelLayout> QwenLayout(uint64_t bytes) {
  constexpr double kWhole = 3.04e9;
  const auto wanted = static_cast<double>(bytes);
  ModelShape model{.hidden = 2048, .ffn = 6144};
  model.vocabulary = std::max<uint64_t>(1000, static_cast<uint64_t>(151'936 * std::min(1.0, wanted / kWhole)));
  model.heads = 16;
  model.key_value_heads = 8;
  model.head_dim = 128;
  model.head_norms = true;
  model.tied = true;
  if (wanted < 0.2e9) {
    model.hidden = 512;
    model.ffn = 1536;
  }
  model.layers = 1;
  const auto size = [&] { return static_cast<double>(OrDie(LayoutOf(model))->data_bytes()); };
  const double one = size();
  model.layers = 2;
  const double layer = size() - one;
  model.layers = static_cast<uint64_t>(std::max(2.0, std::round(1 + (wanted - one) / layer)));
  return OrDie(LayoutOf(model));
}

}  // namespace lockstep::bench
