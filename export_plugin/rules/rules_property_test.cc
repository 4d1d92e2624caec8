// Thousands of random models and topologies: whatever the ranks are expected to hold, it covers every source and every
// HuggingFace tensor exactly once, replicas aside.
#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "common/layout/copy_plan.h"
#include "export_plugin/rules/family.h"
#include "export_plugin/rules/rules_testing.h"

namespace lockstep::rules {
namespace {

constexpr int kCases = 3000;

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  uint64_t From(uint64_t low, uint64_t high) { return std::uniform_int_distribution<uint64_t>(low, high)(engine_); }
  bool Maybe() { return From(0, 1) == 1; }
  template <typename T>
  T Of(std::initializer_list<T> values) {
    return *(values.begin() + From(0, values.size() - 1));
  }

 private:
  std::mt19937_64 engine_;
};

struct Case {
  nlohmann::json config;
  Topology topology;
  bool fused_norms = false;
};

// Cuts `layers` decoder layers into `stages` stages, some empty, as a layout string.
std::string RandomLayout(Random& random, uint64_t stages, uint64_t layers, uint64_t mtp_layers) {
  std::vector<uint64_t> counts(stages);
  for (uint64_t i = 0; i < layers; ++i) ++counts[random.From(0, stages - 1)];
  std::string layout = "E";
  for (uint64_t stage = 0; stage < stages; ++stage) {
    if (stage > 0) layout += '|';
    layout += random.Maybe() ? std::string(counts[stage], 't') : "t*" + std::to_string(counts[stage]);
  }
  return layout + std::string(mtp_layers, 'm') + "L";
}

// How layers lie over stages; returns their number.
uint64_t SplitLayers(Random& random, Topology& topology, uint64_t mtp_layers) {
  const uint64_t stages = uint64_t{topology.pipeline} * topology.virtual_pipeline;
  const uint64_t kind = topology.pipeline == 1 ? 0 : random.From(0, 3);
  const uint64_t each = random.From(1, 2);
  if (kind == 1) {
    const uint64_t layers = random.From(1, 5);
    topology.pipeline_layout = RandomLayout(random, stages, layers, mtp_layers);
    return layers;
  }
  if (kind == 2) {
    topology.embedding_in_split = random.Maybe();
    topology.loss_in_split = random.Maybe();
    return (each + 1) * stages - topology.embedding_in_split - topology.loss_in_split;
  }
  if (kind == 3) {
    uint64_t middle = topology.pipeline;
    if (random.Maybe()) topology.first_stage_layers = topology.virtual_pipeline * random.From(1, 2), --middle;
    if (random.Maybe()) topology.last_stage_layers = topology.virtual_pipeline * random.From(1, 2), --middle;
    return topology.first_stage_layers + topology.last_stage_layers + middle * each * topology.virtual_pipeline;
  }
  return each * stages;
}

Topology RandomTopology(Random& random) {
  Topology topology;
  topology.tensor = random.Of<uint32_t>({1, 2, 4});
  topology.context = random.Of<uint32_t>({1, 1, 2});
  topology.pipeline = random.Of<uint32_t>({1, 2, 3});
  topology.virtual_pipeline = topology.pipeline == 1 ? 1 : random.Of<uint32_t>({1, 2});
  topology.expert = random.Of<uint32_t>({1, 2, 3});
  topology.expert_tensor = random.Of<uint32_t>({1, 2, topology.tensor});
  topology.vocabulary_divisible_by = static_cast<uint32_t>(random.From(1, 9));
  const uint32_t stage = std::lcm(topology.tensor * topology.context, topology.expert * topology.expert_tensor);
  topology.world = topology.pipeline * stage * random.Of<uint32_t>({1, 1, 2});
  return topology;
}

Case RandomCase(uint64_t seed) {
  Random random(seed);
  Case made{.topology = RandomTopology(random), .fused_norms = random.Maybe()};
  Topology& topology = made.topology;
  const Family& family = Families()[random.From(0, Families().size() - 1)];
  const uint64_t tp = topology.tensor;
  const uint64_t mtp_layers = family.mtp ? random.From(0, 2) : 0;
  const uint64_t heads = tp * random.From(1, 2);
  std::vector<uint64_t> divisors;
  for (uint64_t groups = 1; groups <= heads; ++groups) {
    if (heads % groups == 0 && (groups % tp == 0 || tp % groups == 0)) divisors.push_back(groups);
  }
  nlohmann::json& config = made.config = TinyConfig(std::string(family.model_type));
  config.update({{"num_hidden_layers", SplitLayers(random, topology, mtp_layers)},
                 {"num_nextn_predict_layers", mtp_layers},
                 {"hidden_size", tp * random.From(1, 3)},
                 {"vocab_size", random.From(1, 40)},
                 {"num_attention_heads", heads},
                 {"num_key_value_heads", divisors[random.From(0, divisors.size() - 1)]},
                 {"head_dim", tp * random.From(1, 2)},
                 {"intermediate_size", std::lcm(tp, topology.expert_tensor) * random.From(1, 3)},
                 {"moe_intermediate_size", std::lcm(tp, topology.expert_tensor) * random.From(1, 3)},
                 {"tie_word_embeddings", random.Maybe()},
                 {"use_qk_norm", random.Maybe()}});
  const uint64_t experts = topology.expert * random.From(1, 2);
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (config.contains(key)) config[key] = experts;
  }
  if (config.contains("shared_expert_intermediate_size")) config["shared_expert_intermediate_size"] = tp * 3;
  if (config.contains("n_shared_experts")) config["n_shared_experts"] = random.From(0, 2);
  if (family.sparse == SparseLayers::kStep) config["mlp_only_layers"] = {random.From(0, 3)};
  if (family.mla) {
    config["q_lora_rank"] = random.Maybe() ? nlohmann::json(tp * random.From(1, 2)) : nlohmann::json();
    config.update({{"kv_lora_rank", tp * 2}, {"qk_rope_head_dim", tp}, {"qk_nope_head_dim", 3}, {"v_head_dim", 2}});
  }
  return made;
}

// Everything all ranks hold; each rank's names are its own.
layout::TrainingModel WithHoldings(const MegatronRules& rules, const Case& made) {
  layout::TrainingModel model = rules.model();
  for (uint32_t rank = 0; rank < made.topology.world; ++rank) {
    const auto parameters = rules.ExpectedParameters(made.topology, rank, made.fused_norms);
    INFO(parameters.status().ToString());
    REQUIRE(parameters.ok());
    std::set<std::string> names;
    for (const LocalParameter& parameter : *parameters) {
      if (!names.insert(parameter.name).second) FAIL(parameter.name << " twice on rank " << rank);
      auto holding = rules.HoldingOf(parameter, PlaceOf(made.topology, rank));
      if (!holding.ok()) FAIL(holding.status().message());
      holding->rank = rank;
      model.holdings.push_back(*std::move(holding));
    }
  }
  return model;
}

void CheckSources(const layout::TrainingModel& model) {
  std::vector<std::vector<layout::Pieces>> shards(model.sources.size());
  for (const layout::Holding& holding : model.holdings) {
    const layout::Extents& shape = model.sources[holding.source].shape;
    if (!layout::CheckBounds(holding.pieces, holding.local_shape, shape).ok()) FAIL(model.sources[holding.source].name);
    if (!holding.copy) shards[holding.source].push_back(layout::Normalize(holding.pieces));
  }
  for (size_t source = 0; source < shards.size(); ++source) {
    std::sort(shards[source].begin(), shards[source].end(), [](const layout::Pieces& a, const layout::Pieces& b) {
      return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(),
                                          [](const layout::Piece& x, const layout::Piece& y) {
                                            return std::tie(x.target, x.size) < std::tie(y.target, y.size);
                                          });
    });
    shards[source].erase(std::unique(shards[source].begin(), shards[source].end()), shards[source].end());
    layout::Pieces all;
    for (const layout::Pieces& shard : shards[source]) all.insert(all.end(), shard.begin(), shard.end());
    const Status tiles = layout::CheckTiling(all, model.sources[source].shape);
    if (!tiles.ok()) FAIL(model.sources[source].name << ": " << tiles.message());
  }
}

void CheckConversions(const layout::TrainingModel& model) {
  std::vector<layout::Pieces> tensors(model.tensors.size());
  for (const layout::Conversion& conversion : model.conversions) {
    const layout::Extents& shape = model.tensors[conversion.tensor].shape;
    if (!layout::CheckBounds(conversion.pieces, model.sources[conversion.source].shape, shape).ok())
      FAIL("out of bounds");
    layout::Pieces& all = tensors[conversion.tensor];
    all.insert(all.end(), conversion.pieces.begin(), conversion.pieces.end());
  }
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    const Status tiles = layout::CheckTiling(tensors[tensor], model.tensors[tensor].shape);
    if (!tiles.ok()) FAIL(model.tensors[tensor].name << ": " << tiles.message());
  }
}

TEST_CASE("Whatever the topology, the ranks' parameters cover every tensor exactly once") {
  std::map<std::string, int> families;
  for (int seed = 0; seed < kCases; ++seed) {
    const Case made = RandomCase(seed);
    INFO("seed " << seed << " " << made.config.dump() << " layout " << made.topology.pipeline_layout);
    const MegatronRules rules = RulesOf(made.config);
    const layout::TrainingModel model = WithHoldings(rules, made);
    CheckSources(model);
    CheckConversions(model);
    if (seed % 10 == 0) {
      const auto plan = layout::CompileExport(model, std::vector<bool>(made.topology.world, true));
      INFO(plan.status().ToString());
      REQUIRE(plan.ok());
      CHECK(plan->bytes == model.tensors.back().offset + *model::TensorBytes(model.tensors.back()));
    }
    ++families[rules.config().model_type];
  }
  CHECK(families.size() == Families().size());
}

}  // namespace
}  // namespace lockstep::rules
