// Where a training run starts: a layout, and the values of its tensors or the promise to draw them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "export_plugin/exporter/checkpoint.h"

namespace lockstep::demo {

struct InitialModel {
  std::shared_ptr<const model::ModelLayout> layout;
  std::vector<ByteView> values;                    // of each tensor of the layout; none at all: drawn at random
  std::optional<exporter::Checkpoint> checkpoint;  // keeps `values` alive
};

// A Qwen3 with tied embeddings: lm_head is embed_tokens and is not a tensor of its own.
struct Qwen3Shape {
  std::string_view name;
  uint64_t hidden, layers, heads, kv_heads, head_dim, intermediate, vocabulary;
};

// kUsage, listing the known names.
Result<Qwen3Shape> FindShape(std::string_view name);
std::vector<std::string> ShapeNames();

// Its tensors as HuggingFace names them, in export order.
Result<InitialModel> ModelOfShape(const Qwen3Shape& shape);

// config.json for it: with it and the weights, transformers' from_pretrained() loads the model.
std::string ConfigJson(const Qwen3Shape& shape);

// Maps the HuggingFace checkpoint in `directory` (nothing is read yet but headers) and lays its tensors out by name.
// Errors are those of Checkpoint::Open().
Result<InitialModel> OpenCheckpoint(const std::string& directory);

uint64_t ElementCount(const model::ModelLayout& layout);

}  // namespace lockstep::demo
