// What an engine's parameters hold, built the slow way: whole tensors filled with numbers, cut and put together by code
// that knows nothing of rows and slices. For tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/model/layout.h"
#include "raas_receiver/placement/description.h"
#include "raas_receiver/placement/test_layouts.h"

namespace lockstep {

inline constexpr uint64_t kPadNumber = ~uint64_t{0};

// A tensor of numbers.
struct Numbers {
  Extents shape;
  std::vector<uint64_t> values;

  bool operator==(const Numbers&) const = default;

  uint64_t width() const { return shape.size() == 2 ? shape[1] : 1; }
};

// Every element of a layout has a number of its own.
inline Numbers NumbersOf(const ModelLayout& layout, size_t tensor) {
  Numbers numbers{layout.tensors()[tensor].shape, {}};
  numbers.values.resize(ElementCount(numbers.shape));
  for (size_t k = 0; k < numbers.values.size(); ++k) numbers.values[k] = (uint64_t{tensor} << 32) + k;
  return numbers;
}

inline Numbers RowsOf(const Numbers& whole, uint64_t first, uint64_t count) {
  Numbers part{whole.shape, {}};
  part.shape[0] = count;
  const auto begin = whole.values.begin() + static_cast<ptrdiff_t>(first * whole.width());
  part.values.assign(begin, begin + static_cast<ptrdiff_t>(count * whole.width()));
  return part;
}

inline Numbers ColumnsOf(const Numbers& whole, uint64_t first, uint64_t count) {
  Numbers part{{whole.shape[0], count}, {}};
  for (uint64_t row = 0; row < whole.shape[0]; ++row) {
    for (uint64_t k = 0; k < count; ++k) part.values.push_back(whole.values[row * whole.shape[1] + first + k]);
  }
  return part;
}

inline Numbers Below(const std::vector<Numbers>& parts) {
  Numbers all{parts[0].shape, {}};
  all.shape[0] = 0;
  for (const Numbers& part : parts) {
    all.shape[0] += part.shape[0];
    all.values.insert(all.values.end(), part.values.begin(), part.values.end());
  }
  return all;
}

inline Numbers Stacked(const std::vector<Numbers>& parts) {
  Numbers all{{parts.size(), parts[0].shape[0], parts[0].shape[1]}, {}};
  for (const Numbers& part : parts) all.values.insert(all.values.end(), part.values.begin(), part.values.end());
  return all;
}

class EngineOracle {
 public:
  EngineOracle(const ModelShape& model, const ModelLayout& layout, const EnginePlace& place)
      : model_(model), place_(place), sglang_(place.engine == "sglang") {
    for (size_t k = 0; k < layout.tensors().size(); ++k) tensors_[layout.tensors()[k].name] = NumbersOf(layout, k);
  }

  // By the parameter's name.
  std::map<std::string, Numbers> Make() {
    engine_["model.embed_tokens.weight"] = Vocabulary(Whole("model.embed_tokens.weight"));
    engine_["model.norm.weight"] = Whole("model.norm.weight");
    if (!model_.tied) engine_["lm_head.weight"] = Vocabulary(Whole("lm_head.weight"));
    for (uint64_t layer = 0; layer < model_.layers; ++layer) Layer(layer);
    return std::move(engine_);
  }

 private:
  Numbers Whole(const std::string& name) const { return tensors_.at(name); }
  Numbers Here(const std::string& name) const { return tensors_.at(prefix_ + name); }
  void Copy(const std::string& name) { engine_[prefix_ + name] = Here(name); }
  Numbers Column(const Numbers& whole, GroupPlace group) const {
    return RowsOf(whole, group.rank * (whole.shape[0] / group.size), whole.shape[0] / group.size);
  }
  Numbers Row(const Numbers& whole, GroupPlace group) const {
    return ColumnsOf(whole, group.rank * (whole.shape[1] / group.size), whole.shape[1] / group.size);
  }

  Numbers Vocabulary(Numbers whole) const {
    uint64_t rows = whole.shape[0];
    while (rows % 64 != 0) ++rows;
    if (sglang_ && rows % place_.tensor.size != 0) {
      while (rows % (64 * place_.tensor.size) != 0) ++rows;
    }
    whole.shape[0] = rows;
    whole.values.resize(rows * whole.shape[1], kPadNumber);
    return Column(whole, place_.tensor);
  }

  void Layer(uint64_t layer) {
    prefix_ = "model.layers." + std::to_string(layer) + ".";
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) Copy(std::string(norm) + ".weight");
    if (model_.glm4()) {
      Copy("post_self_attn_layernorm.weight");
      Copy("post_mlp_layernorm.weight");
    }
    if (model_.kv_rank > 0) {
      Latent();
    } else {
      Attention("weight");
      if (model_.qkv_bias) Attention("bias");
      if (model_.output_bias) Copy("self_attn.o_proj.bias");
    }
    engine_[prefix_ + "self_attn.o_proj.weight"] = Row(Here("self_attn.o_proj.weight"), place_.tensor);
    if (model_.experts == 0 || layer < model_.dense_layers) {
      Mlp("mlp.");
    } else {
      Moe();
    }
  }

  // A rank has the key/value heads that its query heads attend to.
  void Attention(const std::string& leaf) {
    const uint64_t own = model_.heads / place_.tensor.size;
    const uint64_t first = place_.tensor.rank * own;
    const auto used = [&](uint64_t head) { return head * model_.key_value_heads / model_.heads; };
    const uint64_t kv_count = used(first + own - 1) - used(first) + 1;
    const uint64_t dim = model_.head_dim;
    engine_[prefix_ + "self_attn.qkv_proj." + leaf] =
        Below({RowsOf(Here("self_attn.q_proj." + leaf), first * dim, own * dim),
               RowsOf(Here("self_attn.k_proj." + leaf), used(first) * dim, kv_count * dim),
               RowsOf(Here("self_attn.v_proj." + leaf), used(first) * dim, kv_count * dim)});
    if (!model_.head_norms) return;
    Copy("self_attn.q_norm.weight");
    Copy("self_attn.k_norm.weight");
  }

  void Latent() {
    const std::string attention = prefix_ + "self_attn.";
    if (model_.q_rank > 0) {
      engine_[attention + (sglang_ ? "fused_qkv_a_proj_with_mqa.weight" : "fused_qkv_a_proj.weight")] =
          Below({Here("self_attn.q_a_proj.weight"), Here("self_attn.kv_a_proj_with_mqa.weight")});
      Copy("self_attn.q_a_layernorm.weight");
      engine_[attention + "q_b_proj.weight"] = Column(Here("self_attn.q_b_proj.weight"), place_.tensor);
    } else {
      engine_[attention + "q_proj.weight"] = Column(Here("self_attn.q_proj.weight"), place_.tensor);
      Copy("self_attn.kv_a_proj_with_mqa.weight");
    }
    Copy("self_attn.kv_a_layernorm.weight");
    engine_[attention + "kv_b_proj.weight"] = Column(Here("self_attn.kv_b_proj.weight"), place_.tensor);
  }

  Numbers GateUp(const std::string& name, const std::string& leaf) const {
    if (!model_.glm4()) {
      return Below({Column(Here(name + "gate_proj." + leaf), place_.tensor),
                    Column(Here(name + "up_proj." + leaf), place_.tensor)});
    }
    const Numbers fused = Here(name + "gate_up_proj." + leaf);
    const uint64_t ffn = fused.shape[0] / 2;
    return Below({Column(RowsOf(fused, 0, ffn), place_.tensor), Column(RowsOf(fused, ffn, ffn), place_.tensor)});
  }

  void Mlp(const std::string& name) {
    engine_[prefix_ + name + "gate_up_proj.weight"] = GateUp(name, "weight");
    engine_[prefix_ + name + "down_proj.weight"] = Row(Here(name + "down_proj.weight"), place_.tensor);
    if (!model_.mlp_bias) return;
    engine_[prefix_ + name + "gate_up_proj.bias"] = GateUp(name, "bias");
    Copy(name + "down_proj.bias");
  }

  void Moe() {
    Copy(model_.moe() + "gate.weight");
    if (model_.router_bias) Copy("mlp.gate.e_score_correction_bias");
    std::vector<std::vector<uint64_t>> dealt(place_.expert.size);  // experts by rank
    for (uint64_t rank = 0, expert = 0; rank < place_.expert.size; ++rank) {
      const uint64_t one_more = rank < model_.experts % place_.expert.size ? 1 : 0;
      for (uint64_t k = 0; k < model_.experts / place_.expert.size + one_more; ++k) dealt[rank].push_back(expert++);
    }
    std::vector<Numbers> w13;
    std::vector<Numbers> w2;
    const auto add = [&](const Numbers& gate, const Numbers& up, const Numbers& down) {
      w13.push_back(Below({Column(gate, place_.expert_tensor), Column(up, place_.expert_tensor)}));
      w2.push_back(Row(down, place_.expert_tensor));
    };
    for (const uint64_t expert : dealt[place_.expert.rank]) {
      const std::string name = model_.moe() + "experts." + std::to_string(expert) + ".";
      add(Here(name + model_.ExpertPart(0) + ".weight"), Here(name + model_.ExpertPart(1) + ".weight"),
          Here(name + model_.ExpertPart(2) + ".weight"));
    }
    if (place_.fused_shared_experts) {
      const std::string name = "mlp.shared_experts.";
      add(Here(name + "gate_proj.weight"), Here(name + "up_proj.weight"), Here(name + "down_proj.weight"));
    } else if (model_.family == "qwen2_moe") {
      Mlp("mlp.shared_expert.");
      Copy("mlp.shared_expert_gate.weight");
    } else if (model_.shared_ffn > 0) {
      Mlp("mlp.shared_experts.");
    }
    const std::string stacks = prefix_ + model_.moe() + (sglang_ ? "experts." : "experts.routed_experts.");
    engine_[stacks + "w13_weight"] = Stacked(w13);
    engine_[stacks + "w2_weight"] = Stacked(w2);
  }

  const ModelShape& model_;
  const EnginePlace place_;
  const bool sglang_;
  std::string prefix_;
  std::map<std::string, Numbers> tensors_;
  std::map<std::string, Numbers> engine_;
};

}  // namespace lockstep
