// Models by name: the tensor lists of the Qwen3 family as HuggingFace names them, in export order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "deploy/demo_trainer/initial_model.h"

namespace lockstep::demo {

// A Qwen3 with tied embeddings: lm_head is embed_tokens and is not a tensor of its own.
struct Qwen3Shape {
  std::string_view name;
  uint64_t hidden, layers, heads, kv_heads, head_dim, intermediate, vocabulary;
};

// kUsage, listing the known names.
Result<Qwen3Shape> FindShape(std::string_view name);
std::vector<std::string> ShapeNames();

Result<InitialModel> ModelOfShape(const Qwen3Shape& shape);

// config.json for it: with it and the weights, transformers' from_pretrained() loads the model.
std::string ConfigJson(const Qwen3Shape& shape);

}  // namespace lockstep::demo
