// The HuggingFace tensors of some families, written out: names, shapes and order. tests/layouts compares those of the
// others with checkpoints of transformers (test_megatron.py, test_sharded_state.py).
#include <algorithm>

#include "common/base/text.h"
#include "export_plugin/rules/family.h"
#include "export_plugin/rules/rules_testing.h"

namespace lockstep::rules {
namespace {

std::vector<std::string> Tensors(const MegatronRules& rules) {
  std::vector<std::string> lines;
  for (const model::TensorMeta& tensor : rules.model().tensors) lines.push_back(Line(tensor.name, tensor.shape));
  return lines;
}

void CheckTensors(const nlohmann::json& config, std::string_view expected) {
  INFO(config.dump());
  CHECK(Tensors(RulesOf(config)) == Lines(expected));
}

constexpr std::string_view kLlama = R"(
model.embed_tokens.weight 11 8
model.layers.0.input_layernorm.weight 8
model.layers.0.self_attn.q_proj.weight 12 8
model.layers.0.self_attn.k_proj.weight 6 8
model.layers.0.self_attn.v_proj.weight 6 8
model.layers.0.self_attn.o_proj.weight 8 12
model.layers.0.post_attention_layernorm.weight 8
model.layers.0.mlp.gate_proj.weight 10 8
model.layers.0.mlp.up_proj.weight 10 8
model.layers.0.mlp.down_proj.weight 8 10
model.layers.1.input_layernorm.weight 8
model.layers.1.self_attn.q_proj.weight 12 8
model.layers.1.self_attn.k_proj.weight 6 8
model.layers.1.self_attn.v_proj.weight 6 8
model.layers.1.self_attn.o_proj.weight 8 12
model.layers.1.post_attention_layernorm.weight 8
model.layers.1.mlp.gate_proj.weight 10 8
model.layers.1.mlp.up_proj.weight 10 8
model.layers.1.mlp.down_proj.weight 8 10
model.norm.weight 8
lm_head.weight 11 8
)";

TEST_CASE("Llama and Mistral have no biases and no norms of q and k") {
  CheckTensors(TinyConfig("llama"), kLlama);
  CheckTensors(TinyConfig("mistral"), kLlama);
}

constexpr std::string_view kDeepSeek = R"(
model.embed_tokens.weight 11 8
model.layers.0.input_layernorm.weight 8
model.layers.0.self_attn.q_a_proj.weight 5 8
model.layers.0.self_attn.kv_a_proj_with_mqa.weight 8 8
model.layers.0.self_attn.q_a_layernorm.weight 5
model.layers.0.self_attn.q_b_proj.weight 12 5
model.layers.0.self_attn.kv_a_layernorm.weight 7
model.layers.0.self_attn.kv_b_proj.weight 20 7
model.layers.0.self_attn.o_proj.weight 8 12
model.layers.0.post_attention_layernorm.weight 8
model.layers.0.mlp.gate_proj.weight 10 8
model.layers.0.mlp.up_proj.weight 10 8
model.layers.0.mlp.down_proj.weight 8 10
model.layers.1.input_layernorm.weight 8
model.layers.1.self_attn.q_a_proj.weight 5 8
model.layers.1.self_attn.kv_a_proj_with_mqa.weight 8 8
model.layers.1.self_attn.q_a_layernorm.weight 5
model.layers.1.self_attn.q_b_proj.weight 12 5
model.layers.1.self_attn.kv_a_layernorm.weight 7
model.layers.1.self_attn.kv_b_proj.weight 20 7
model.layers.1.self_attn.o_proj.weight 8 12
model.layers.1.post_attention_layernorm.weight 8
model.layers.1.mlp.gate.weight 2 8
model.layers.1.mlp.gate.e_score_correction_bias 2
model.layers.1.mlp.experts.0.gate_proj.weight 6 8
model.layers.1.mlp.experts.0.up_proj.weight 6 8
model.layers.1.mlp.experts.0.down_proj.weight 8 6
model.layers.1.mlp.experts.1.gate_proj.weight 6 8
model.layers.1.mlp.experts.1.up_proj.weight 6 8
model.layers.1.mlp.experts.1.down_proj.weight 8 6
model.layers.1.mlp.shared_experts.gate_proj.weight 6 8
model.layers.1.mlp.shared_experts.up_proj.weight 6 8
model.layers.1.mlp.shared_experts.down_proj.weight 8 6
model.norm.weight 8
lm_head.weight 11 8
)";

TEST_CASE("DeepSeek-V3 has latent attention, dense first layers, a router bias and shared experts") {
  nlohmann::json config = TinyConfig("deepseek_v3");
  config["num_nextn_predict_layers"] = 0;
  CheckTensors(config, kDeepSeek);
}

void CheckRow(const FamilyRow& row, bool first) {
  INFO(row.mcore << " -> " << row.hf);
  const auto targets = std::count(row.hf.begin(), row.hf.end(), '|') + 1;
  if (row.split == TensorSplit::kQkv) {
    CHECK(targets == 3);
  } else {
    CHECK(targets <= (row.split == TensorSplit::kGlu ? 2 : 1));
  }
  if (row.split == TensorSplit::kRow) CHECK(row.columns != nullptr);
  CHECK_FALSE((first && row.with_previous));
  for (const std::string_view names : {row.mcore, row.hf}) {
    for (std::string_view rest = names; !rest.empty();) {
      CHECK((NextPart(rest).find("{}") != std::string_view::npos) == (row.where == RowScope::kExpert));
    }
  }
}

TEST_CASE("Tables are well formed") {
  for (const Family& family : Families()) {
    INFO(family.model_type);
    CHECK(FindFamily(family.model_type) == &family);
    CHECK((family.sparse == SparseLayers::kNone) == family.expert_ffn_key.empty());
    for (const std::span<const FamilyRow> rows : family.rows) {
      for (const FamilyRow& row : rows) CheckRow(row, &row == rows.data());
    }
  }
  CHECK(FindFamily("llam") == nullptr);
}

}  // namespace
}  // namespace lockstep::rules
