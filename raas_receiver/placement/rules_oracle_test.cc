// What rules say against what slow code builds, element by element.
#include "raas_receiver/placement/rules_oracle.h"

#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <string>

#include "common/base/text.h"
#include "common/layout/layout_testing.h"
#include "common/layout/training_model.h"
#include "raas_receiver/placement/rules.h"
#include "raas_receiver/placement/test_layouts.h"

namespace lockstep {
namespace {

const std::vector<std::string> kFamilyNames = {"llama",     "mistral", "qwen2",       "qwen3", "qwen2_moe",
                                               "qwen3_moe", "mixtral", "deepseek_v3", "glm4",  "glm4_moe"};

// Rank `rank` where experts are dealt over the slower part of the tensor ranks.
EnginePlace PlaceOf(const std::string& engine, const ModelShape& model, uint32_t tp, uint32_t ep, uint32_t rank) {
  EnginePlace place{.engine = engine, .family = model.family};
  const uint32_t expert_tensor = std::max<uint32_t>(1, tp / ep);
  place.tensor = {tp, rank % tp};
  place.expert = {ep, rank / expert_tensor % ep};
  place.expert_tensor = {expert_tensor, rank % expert_tensor};
  place.key_value_heads = model.key_value_heads;
  return place;
}

// Proves that slices and padding tile the parameter, and gives what lies in it.
Numbers Evaluate(const ModelLayout& layout, const std::map<std::string, size_t>& tensors,
                 const EngineParameter& parameter) {
  const size_t rank = parameter.shape.size();
  Numbers numbers{parameter.shape, {}};
  numbers.values.assign(ElementCount(parameter.shape), kPadNumber);
  Pieces all;
  for (const Slice& slice : parameter.slices) {
    const size_t tensor = tensors.at(slice.tensor);
    const Extents shape = Promoted(layout.tensors()[tensor].shape, rank);
    Extents from = slice.from;
    from.insert(from.begin(), rank - from.size(), 0);
    const Pieces piece = Box(from, slice.at, Promoted(slice.shape, rank));
    REQUIRE(layout.tensors()[tensor].dtype == parameter.dtype);
    REQUIRE(CheckBounds(piece, shape, parameter.shape).ok());
    ForEachIndex(piece[0].size, [&](const Extents& index) {
      numbers.values[FlatIndex(parameter.shape, slice.at, index)] =
          (uint64_t{tensor} << 32) + FlatIndex(shape, from, index);
    });
    all.push_back(piece[0]);
  }
  for (const Padding& padding : parameter.padding) all.push_back({padding.at, padding.at, padding.shape});
  const Status tiling = CheckTiling(all, parameter.shape);
  INFO(tiling.ToString());
  REQUIRE(tiling.ok());
  return numbers;
}

std::string Text(const EnginePlace& place) {
  const auto group = [](GroupPlace of) { return Cat(of.rank, "/", of.size); };
  return Cat(place.engine, " ", place.family, ", tensor ", group(place.tensor), ", expert ", group(place.expert), ", ",
             group(place.expert_tensor), place.fused_shared_experts ? ", fused" : "");
}

// All of one rank, and the elements that it takes, counted.
void CheckRank(const ModelShape& model, const ModelLayout& layout, const EnginePlace& place,
               std::vector<std::vector<bool>>& taken) {
  INFO(Text(place));
  const Result<ExpandedRules> rules = ExpandRules(layout, place);
  INFO(rules.status().ToString());
  REQUIRE(rules.ok());
  std::map<std::string, size_t> tensors;
  for (size_t k = 0; k < layout.tensors().size(); ++k) tensors[layout.tensors()[k].name] = k;
  std::map<std::string, Numbers> expected = EngineOracle(model, layout, place).Make();
  uint64_t offset = 0;
  for (const EngineParameter& parameter : rules->parameters) {
    INFO(parameter.name);
    REQUIRE(expected.contains(parameter.name));
    const Numbers numbers = Evaluate(layout, tensors, parameter);
    REQUIRE(numbers.shape == expected.at(parameter.name).shape);
    REQUIRE(numbers.values == expected.at(parameter.name).values);
    REQUIRE(parameter.offset == offset);
    offset += (numbers.values.size() * FindDType(parameter.dtype)->unit_bytes + 255) / 256 * 256;
    uint64_t stride = 1;
    for (size_t k = parameter.shape.size(); k-- > 0; stride *= parameter.shape[k]) {
      REQUIRE(parameter.strides[k] == stride);
    }
    for (const uint64_t value : numbers.values) {
      if (value != kPadNumber) taken[value >> 32][value & 0xffff'ffff] = true;
    }
    expected.erase(parameter.name);
  }
  INFO("a parameter without a rule: " << (expected.empty() ? "" : expected.begin()->first));
  REQUIRE(expected.empty());
}

std::shared_ptr<const ModelLayout> Layout(const ModelShape& model) {
  Result<std::shared_ptr<const ModelLayout>> layout = LayoutOf(model);
  INFO(layout.status().ToString());
  REQUIRE(layout.ok());
  return *layout;
}

// Every rank of an engine, and that together they take every element but those of unused tensors.
void CheckEngine(const std::string& engine, const ModelShape& model, uint32_t tp, uint32_t ep, bool fused = false) {
  const std::shared_ptr<const ModelLayout> layout = Layout(model);
  std::vector<std::vector<bool>> taken;
  for (const TensorMeta& tensor : layout->tensors()) taken.emplace_back(ElementCount(tensor.shape));
  std::set<std::string> unused;
  for (uint32_t rank = 0; rank < std::max(tp, ep); ++rank) {
    EnginePlace place = PlaceOf(engine, model, tp, ep, rank);
    place.fused_shared_experts = fused;
    CheckRank(model, *layout, place, taken);
    const Result<ExpandedRules> rules = ExpandRules(*layout, place);
    unused = {rules->unused.begin(), rules->unused.end()};
  }
  for (size_t k = 0; k < taken.size(); ++k) {
    const std::string& name = layout->tensors()[k].name;
    const bool mtp = model.mtp_layers > 0 && name.starts_with(Cat("model.layers.", model.layers, "."));
    INFO(name);
    REQUIRE(unused.contains(name) == mtp);
    REQUIRE(std::ranges::count(taken[k], !mtp) == static_cast<ptrdiff_t>(taken[k].size()));
  }
}

TEST_CASE("every family at TP 1, 2, 4, 8 and EP 1, 2 is what slow slicing gives, and takes every element") {
  const std::string engine = GENERATE("sglang", "vllm");
  const uint32_t ep = GENERATE(1, 2);
  for (const std::string& family : kFamilyNames) {
    const ModelShape model = TinyModel(family);
    for (const uint32_t tp : {1, 2, 4, 8}) CheckEngine(engine, model, tp, ep);
  }
}

TEST_CASE("a shared expert fused behind the routed ones is on every rank of the expert group") {
  const std::string family = GENERATE("deepseek_v3", "glm4_moe");
  for (const uint32_t tp : {1, 2, 4}) {
    for (const uint32_t ep : {1, 2}) CheckEngine("sglang", TinyModel(family), tp, ep, /*fused=*/true);
  }
}

TEST_CASE("variants of a family are what slow slicing gives") {
  const std::string engine = GENERATE("sglang", "vllm");
  ModelShape biased = TinyModel("llama");
  biased.qkv_bias = biased.output_bias = true;
  biased.mlp_bias = engine == "vllm";
  CheckEngine(engine, biased, 4, 1);

  ModelShape no_q_rank = TinyModel("deepseek_v3");
  no_q_rank.q_rank = 0;
  CheckEngine(engine, no_q_rank, 2, 2);

  ModelShape no_norms = TinyModel("glm4_moe");
  no_norms.head_norms = no_norms.qkv_bias = no_norms.router_bias = false;
  no_norms.mtp_layers = 0;
  CheckEngine(engine, no_norms, 2, 1);

  if (engine != "vllm") return;  // SGLang has no dense layers there
  for (const char* family : {"qwen2_moe", "qwen3_moe"}) {
    ModelShape some_dense = TinyModel(family);
    some_dense.dense_layers = 1;
    CheckEngine(engine, some_dense, 2, 2);
  }
}

TEST_CASE("a group that does not divide 64 pads SGLang's vocabulary further") {
  ModelShape model = TinyModel("llama");
  model.heads = 6;
  model.key_value_heads = 3;
  model.vocabulary = 70;
  CheckEngine("sglang", model, 6, 1);
  model.vocabulary = 190;  // 192 rows are two a rank of 96
  CheckEngine("sglang", model, 3, 1);
  CheckEngine("vllm", model, 3, 1);
}

TEST_CASE("experts that vLLM's ranks cannot share evenly go to the first ranks") {
  ModelShape model = TinyModel("qwen3_moe");
  model.experts = 6;
  CheckEngine("vllm", model, 4, 4);
  model.experts = 7;
  CheckEngine("vllm", model, 2, 2);
}

ModelShape RandomModel(Random& random, const std::string& engine, uint32_t tp, uint32_t ep) {
  ModelShape model = TinyModel(kFamilyNames[random.Between(0, kFamilyNames.size() - 1)]);
  model.vocabulary = random.Between(1, 300);
  model.hidden = random.Between(1, 9);
  model.layers = model.dense_layers + random.Between(1, 2);
  model.ffn = tp * random.Between(1, 5);
  model.head_dim = random.Between(1, 4);
  const uint64_t per_kv = uint64_t{1} << random.Between(0, 2);
  model.key_value_heads = uint64_t{1} << random.Between(0, 3);
  model.heads = std::max<uint64_t>(model.key_value_heads * per_kv, tp);
  model.tied = random.OneIn(2);
  model.v_dim = random.Between(1, 4);
  model.kv_rank = model.kv_rank > 0 ? random.Between(1, 6) : 0;
  model.expert_ffn = tp * random.Between(1, 3);
  if (model.experts > 0) model.experts = engine == "vllm" ? random.Between(ep, 9) : ep * random.Between(1, 4);
  if (model.shared_ffn > 0) model.shared_ffn = tp * random.Between(1, 4);
  return model;
}

TEST_CASE("random models and topologies are what slow slicing gives, and take every element") {
  const uint64_t seed = GENERATE(range(0, 60));
  Random random(seed);
  const std::string engine = random.OneIn(2) ? "sglang" : "vllm";
  const uint32_t tp = 1u << random.Between(0, 3);
  const uint32_t ep = 1u << random.Between(0, 2);
  INFO("seed " << seed);
  CheckEngine(engine, RandomModel(random, engine, tp, ep), tp, std::min(tp, ep));
}

TEST_CASE("experts in one tensor give the parameters that experts in tensors of their own give") {
  const std::string engine = GENERATE("sglang", "vllm");
  const std::string family = GENERATE("qwen3_moe", "mixtral", "deepseek_v3");
  const ModelShape model = TinyModel(family);
  std::vector<TensorMeta> tensors = TestTensors(model).Make();
  std::erase_if(tensors, [](const TensorMeta& tensor) { return tensor.name.find(".experts.") != std::string::npos; });
  for (TensorMeta& tensor : tensors) {
    const size_t at = tensor.name.find("block_sparse_moe");
    if (at != std::string::npos) tensor.name.replace(at, 16, "mlp");
  }
  for (uint64_t layer = model.dense_layers; layer < model.layers; ++layer) {
    const std::string prefix = Cat("model.layers.", layer, ".mlp.experts.");
    tensors.push_back({prefix + "gate_up_proj", DType::kBF16, {model.experts, 2 * model.expert_ffn, model.hidden}});
    tensors.push_back({prefix + "down_proj", DType::kBF16, {model.experts, model.hidden, model.expert_ffn}});
  }
  const auto stacked = LayoutOf(std::move(tensors));
  REQUIRE(stacked.ok());
  const std::shared_ptr<const ModelLayout> apart = Layout(model);
  std::map<std::string, size_t> names;
  std::map<std::string, size_t> apart_names;
  for (size_t k = 0; k < (*stacked)->tensors().size(); ++k) names[(*stacked)->tensors()[k].name] = k;
  for (size_t k = 0; k < apart->tensors().size(); ++k) apart_names[apart->tensors()[k].name] = k;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    EnginePlace place = PlaceOf(engine, model, 4, 2, rank);
    place.fused_shared_experts = engine == "sglang" && family == "deepseek_v3";
    const Result<ExpandedRules> one = ExpandRules(**stacked, place);
    const Result<ExpandedRules> other = ExpandRules(*apart, place);
    INFO(one.status().ToString());
    REQUIRE(one.ok());
    REQUIRE(one->parameters.size() == other->parameters.size());
    for (size_t k = 0; k < one->parameters.size(); ++k) {
      const EngineParameter& parameter = one->parameters[k];
      REQUIRE(parameter.name == other->parameters[k].name);
      REQUIRE(parameter.shape == other->parameters[k].shape);
      const Numbers here = Evaluate(**stacked, names, parameter);
      const Numbers there = Evaluate(*apart, apart_names, other->parameters[k]);
      if (!parameter.name.ends_with("w13_weight") && !parameter.name.ends_with("w2_weight")) continue;
      // Element e of an expert's matrices, found in either layout.
      for (size_t e = 0; e < here.values.size(); ++e) {
        const TensorMeta& one_expert = apart->tensors()[there.values[e] >> 32];
        if (one_expert.name.find(".shared_experts.") != std::string::npos) continue;
        const size_t digits = one_expert.name.find(".experts.") + 9;
        const uint64_t expert = std::stoull(one_expert.name.substr(digits));
        const bool up = one_expert.name.find("up_proj") != std::string::npos || one_expert.name.ends_with("w3.weight");
        const uint64_t matrix = model.expert_ffn * model.hidden;
        const uint64_t matrices = parameter.name.ends_with("w13_weight") ? 2 : 1;
        const uint64_t want = (expert * matrices + (up ? 1 : 0)) * matrix + (there.values[e] & 0xffff'ffff);
        REQUIRE((here.values[e] & 0xffff'ffff) == want);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
