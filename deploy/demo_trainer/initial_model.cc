#include "deploy/demo_trainer/initial_model.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/text.h"

namespace lockstep::demo {
namespace {

// "tiny" is ours: 42 M parameters, small enough for a demo of seconds and large enough that a delta is worth its name.
constexpr std::array kShapes = {
    Qwen3Shape{"tiny", 512, 8, 8, 4, 64, 1536, 32768},
    Qwen3Shape{"qwen3-0.6b", 1024, 28, 16, 8, 128, 3072, 151936},
    Qwen3Shape{"qwen3-1.7b", 2048, 28, 16, 8, 128, 6144, 151936},
};

std::vector<model::TensorMeta> TensorsOf(const Qwen3Shape& s) {
  std::vector<model::TensorMeta> tensors;
  const auto add = [&](std::string name, std::vector<uint64_t> shape) {
    tensors.push_back({.name = std::move(name) + ".weight", .dtype = model::DType::kBF16, .shape = std::move(shape)});
  };
  add("model.embed_tokens", {s.vocabulary, s.hidden});
  for (uint64_t i = 0; i < s.layers; ++i) {
    const std::string layer = Cat("model.layers.", i, ".");
    add(layer + "self_attn.q_proj", {s.heads * s.head_dim, s.hidden});
    add(layer + "self_attn.k_proj", {s.kv_heads * s.head_dim, s.hidden});
    add(layer + "self_attn.v_proj", {s.kv_heads * s.head_dim, s.hidden});
    add(layer + "self_attn.o_proj", {s.hidden, s.heads * s.head_dim});
    add(layer + "self_attn.q_norm", {s.head_dim});
    add(layer + "self_attn.k_norm", {s.head_dim});
    add(layer + "mlp.gate_proj", {s.intermediate, s.hidden});
    add(layer + "mlp.up_proj", {s.intermediate, s.hidden});
    add(layer + "mlp.down_proj", {s.hidden, s.intermediate});
    add(layer + "input_layernorm", {s.hidden});
    add(layer + "post_attention_layernorm", {s.hidden});
  }
  add("model.norm", {s.hidden});
  return tensors;
}

Result<std::shared_ptr<const model::ModelLayout>> LayOut(std::vector<model::TensorMeta> tensors) {
  LS_RETURN_IF_ERROR(model::AssignOffsets(tensors));
  return model::ModelLayout::Create(std::move(tensors));
}

}  // namespace

std::vector<std::string> ShapeNames() {
  std::vector<std::string> names;
  for (const Qwen3Shape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

Result<Qwen3Shape> FindShape(std::string_view name) {
  std::string known;
  for (const Qwen3Shape& shape : kShapes) {
    if (shape.name == name) return shape;
    known += Cat(known.empty() ? "" : ", ", shape.name);
  }
  return Status(ErrorCode::kUsage, Cat("there is no shape \"", name, "\"; known are: ", known));
}

Result<InitialModel> ModelOfShape(const Qwen3Shape& shape) {
  InitialModel model;
  LS_ASSIGN_OR_RETURN(model.layout, LayOut(TensorsOf(shape)));
  return model;
}

std::string ConfigJson(const Qwen3Shape& s) {
  nlohmann::ordered_json config = {
      {"architectures", {"Qwen3ForCausalLM"}},
      {"model_type", "qwen3"},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"bos_token_id", 0},
      {"eos_token_id", 1},
      {"head_dim", s.head_dim},
      {"hidden_act", "silu"},
      {"hidden_size", s.hidden},
      {"initializer_range", 0.02},
      {"intermediate_size", s.intermediate},
      {"max_position_embeddings", 40960},
      {"num_attention_heads", s.heads},
      {"num_hidden_layers", s.layers},
      {"num_key_value_heads", s.kv_heads},
      {"rms_norm_eps", 1e-6},
      {"rope_theta", 1000000},
      {"tie_word_embeddings", true},
      {"torch_dtype", "bfloat16"},
      {"use_cache", true},
      {"use_sliding_window", false},
      {"vocab_size", s.vocabulary},
  };
  return config.dump(2) + "\n";
}

Result<InitialModel> OpenCheckpoint(const std::string& directory) {
  InitialModel model;
  LS_ASSIGN_OR_RETURN(model.checkpoint, exporter::Checkpoint::Open(directory));
  std::vector<model::TensorMeta> tensors;
  for (const auto& [name, tensor] : model.checkpoint->tensors()) tensors.push_back(tensor.meta);
  std::ranges::sort(tensors, {}, &model::TensorMeta::name);
  LS_ASSIGN_OR_RETURN(model.layout, LayOut(std::move(tensors)));
  for (size_t i = 0; i < model.layout->tensors().size(); ++i) {
    const exporter::Checkpoint::Tensor* tensor = model.checkpoint->Find(model.layout->tensors()[i].name);
    model.values.emplace_back(tensor->data, model.layout->tensor_bytes(i));
  }
  return model;
}

uint64_t ElementCount(const model::ModelLayout& layout) {
  uint64_t elements = 0;
  for (size_t i = 0; i < layout.tensors().size(); ++i) {
    elements += layout.tensor_bytes(i) * 8 / model::FindDType(layout.tensors()[i].dtype)->bits;
  }
  return elements;
}

}  // namespace lockstep::demo
