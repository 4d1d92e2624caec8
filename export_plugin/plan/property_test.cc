// Random families, topologies and sizes: there is a plan, and what ranks import from a HuggingFace image and export
// again is the image, to the bit.
#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "common/base/bytes.h"
#include "common/base/text.h"
#include "common/layout/copy_plan.h"
#include "common/layout/layout_testing.h"
#include "export_plugin/plan/shard_description.h"
#include "export_plugin/rules/model_config.h"

namespace lockstep::plan {
namespace {

using Json = nlohmann::json;

// Sources are tiled, and tensors written once, in each case: CompileExport() proves it. Every kWithBytes-th runs
// copies.
constexpr uint64_t kCases = 3000;
constexpr uint64_t kWithBytes = 7;

struct Trainer {
  Json config;
  rules::Topology topology;
  bool fused_norms = false;
  uint32_t ranks_per_host = 0;
};

// Cuts `layers` decoder layers into `stages` stages, some empty, as a layout string.
std::string RandomLayout(layout::Random& random, uint64_t stages, uint64_t layers, uint64_t mtp_layers) {
  std::vector<uint64_t> counts(stages);
  for (uint64_t i = 0; i < layers; ++i) ++counts[random.Between(0, stages - 1)];
  std::string layout = "E";
  for (uint64_t stage = 0; stage < stages; ++stage) {
    if (stage > 0) layout += '|';
    layout += random.OneIn(2) ? std::string(counts[stage], 't') : Cat("t*", counts[stage]);
  }
  return layout + std::string(mtp_layers, 'm') + "L";
}

// How layers lie over stages; returns their number.
uint64_t SplitLayers(layout::Random& random, rules::Topology& topology, uint64_t mtp_layers) {
  const uint64_t stages = uint64_t{topology.pipeline} * topology.virtual_pipeline;
  const uint64_t kind = topology.pipeline == 1 ? 0 : random.Between(0, 3);
  const uint64_t each = random.Between(1, 2);
  if (kind == 1) {
    const uint64_t layers = random.Between(1, 5);
    topology.pipeline_layout = RandomLayout(random, stages, layers, mtp_layers);
    return layers;
  }
  if (kind == 2) {
    topology.embedding_in_split = random.OneIn(2);
    topology.loss_in_split = random.OneIn(2);
    return (each + 1) * stages - topology.embedding_in_split - topology.loss_in_split;
  }
  if (kind == 3) {
    uint64_t middle = topology.pipeline;
    const auto few = [&] { return static_cast<uint32_t>(topology.virtual_pipeline * random.Between(1, 2)); };
    if (random.OneIn(2)) topology.first_stage_layers = few(), --middle;
    if (random.OneIn(2)) topology.last_stage_layers = few(), --middle;
    return topology.first_stage_layers + topology.last_stage_layers + middle * each * topology.virtual_pipeline;
  }
  return each * stages;
}

rules::Topology RandomTopology(layout::Random& random) {
  rules::Topology topology;
  topology.tensor = random.OneOf({1, 2, 4});
  topology.context = random.OneOf({1, 1, 2});
  topology.pipeline = random.OneOf({1, 2, 3});
  topology.virtual_pipeline = topology.pipeline == 1 ? 1 : random.OneOf({1, 2});
  topology.expert = random.OneOf({1, 2, 3});
  topology.expert_tensor = random.OneOf<uint32_t>({1, 2, topology.tensor});
  topology.vocabulary_divisible_by = static_cast<uint32_t>(random.Between(1, 9));
  const uint32_t stage = std::lcm(topology.tensor * topology.context, topology.expert * topology.expert_tensor);
  topology.world = topology.pipeline * stage * random.OneOf({1, 1, 2});
  return topology;
}

Trainer RandomTrainer(layout::Random& random) {
  Trainer trainer{.topology = RandomTopology(random), .fused_norms = random.OneIn(2)};
  rules::Topology& topology = trainer.topology;
  trainer.ranks_per_host = static_cast<uint32_t>(random.Between(0, topology.world));
  const std::vector<std::string_view> families = rules::KnownFamilies();
  const std::string_view family = families[random.Between(0, families.size() - 1)];
  const uint64_t tp = topology.tensor;
  const uint64_t both = std::lcm(topology.tensor, topology.expert_tensor);
  const uint64_t mtp_layers = family == "deepseek_v3" || family == "glm4_moe" ? random.Between(0, 2) : 0;
  const uint64_t heads = tp * random.Between(1, 2);
  std::vector<uint64_t> divisors;
  for (uint64_t groups = 1; groups <= heads; ++groups) {
    if (heads % groups == 0 && (groups % tp == 0 || tp % groups == 0)) divisors.push_back(groups);
  }
  const uint64_t layers = SplitLayers(random, topology, mtp_layers);
  Json& config = trainer.config;
  config = {{"model_type", family},
            {"dtype", random.OneOf({"bfloat16", "float32"})},
            {"num_hidden_layers", layers},
            {"num_nextn_predict_layers", mtp_layers},
            {"hidden_size", tp * random.Between(1, 3)},
            {"vocab_size", random.Between(1, 40)},
            {"num_attention_heads", heads},
            {"num_key_value_heads", divisors[random.Between(0, divisors.size() - 1)]},
            {"head_dim", tp * random.Between(1, 2)},
            {"intermediate_size", both * random.Between(1, 3)},
            {"moe_intermediate_size", both * random.Between(1, 3)},
            {"tie_word_embeddings", random.OneIn(2)},
            {"use_qk_norm", random.OneIn(2)},
            {"attention_bias", family.starts_with("glm4") && random.OneIn(2)},
            {"num_experts", topology.expert * random.Between(1, 2)},
            {"shared_expert_intermediate_size", tp * random.Between(0, 3)},
            {"n_shared_experts", random.Between(0, 2)},
            {"first_k_dense_replace", random.Between(0, layers)},
            {"decoder_sparse_step", random.Between(1, 2)},
            {"mlp_only_layers", {random.Between(0, 3)}},
            {"kv_lora_rank", tp * 2},
            {"qk_rope_head_dim", tp},
            {"qk_nope_head_dim", 3},
            {"v_head_dim", 2}};
  if (random.OneIn(2)) config["q_lora_rank"] = tp * random.Between(1, 2);
  return trainer;
}

// A part of DTensor-like tensors: cut into a grid, each block held by one or several ranks.
void AddTensorPart(layout::Random& random, std::vector<ShardDescription>& descriptions) {
  std::vector<std::vector<TensorDescription>> parts(descriptions.size());
  const auto Cuts = [&](uint64_t size) {
    std::vector<uint64_t> cuts = {0, random.Between(0, size), size};
    std::sort(cuts.begin(), cuts.end());
    return cuts;
  };
  for (int i = 0; i < 3; ++i) {
    const layout::Extents shape = {random.Between(1, 7), random.Between(1, 7)};
    const auto rows = Cuts(shape[0]);
    const auto columns = Cuts(shape[1]);
    const auto dtype = random.OneOf({model::DType::kBF16, model::DType::kF32, model::DType::kU8});
    const uint64_t step = random.Between(1, 4);
    for (size_t rank = 0; rank < descriptions.size(); ++rank) {
      TensorDescription tensor{.name = Cat("plain.", i), .dtype = dtype, .shape = shape};
      const size_t block = rank / step % 4;
      const layout::Extents start = {rows[block / 2], columns[block % 2]};
      tensor.local_shape = {rows[block / 2 + 1] - start[0], columns[block % 2 + 1] - start[1]};
      if (layout::ElementCount(tensor.local_shape) > 0) tensor.boxes = layout::Box({0, 0}, start, tensor.local_shape);
      parts[rank].push_back(std::move(tensor));
    }
    // Too few ranks for all blocks: rank 0 has the whole, too, instead of its block.
    if (descriptions.size() < 4 * step) {
      for (auto& part : parts) part.back().boxes.clear();
      parts[0].back().local_shape = shape;
      parts[0].back().boxes = layout::Whole(shape);
    }
  }
  for (size_t rank = 0; rank < descriptions.size(); ++rank) descriptions[rank].parts.push_back(std::move(parts[rank]));
}

Result<std::vector<ShardDescription>> ThroughJson(const std::vector<ShardDescription>& descriptions) {
  std::vector<ShardDescription> read;
  for (const ShardDescription& description : descriptions) {
    LS_ASSIGN_OR_RETURN(ShardDescription parsed, ParseDescription(ToJson(description)));
    read.push_back(std::move(parsed));
  }
  return read;
}

Bytes RandomBytes(layout::Random& random, size_t count) {
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Between(0, 255));
  return bytes;
}

// All ranks' memories, and the copies between them and an image.
class World {
 public:
  explicit World(const layout::TrainingModel& model) : model_(model) {
    for (const layout::Conversion& conversion : model.conversions) {
      if (conversion.source >= element_bytes_.size()) element_bytes_.resize(conversion.source + 1);
      element_bytes_[conversion.source] = model::FindDType(model.tensors[conversion.tensor].dtype)->bits / 8;
    }
    for (const layout::Holding& holding : model.holdings) {
      memories_.emplace_back(layout::ElementCount(holding.local_shape) * element_bytes_[holding.source]);
    }
  }

  uint64_t image_bytes() const { return model_.tensors.back().offset + *model::TensorBytes(model_.tensors.back()); }
  std::vector<Bytes>& memories() { return memories_; }

  // Every local tensor of `rank`, copies too.
  void Import(uint32_t rank, const layout::RankPlan& plan, const Bytes& image) {
    for (size_t i = 0; i < memories_.size(); ++i) {
      if (model_.holdings[i].rank != rank) continue;
      for (const layout::PlanEntry& entry : plan.entries) {
        if (entry.source != model_.holdings[i].source) continue;
        std::vector<layout::StridedCopy> copies;
        layout::AppendCopies(layout::Inverse(entry.pieces), ImageView(entry), LocalView(i), copies);
        REQUIRE(layout::RunCopies(copies, image, memories_[i]));
      }
    }
  }

  void Export(uint32_t rank, const layout::RankPlan& plan, Bytes& image) const {
    uint64_t bytes = 0;
    for (const layout::PlanEntry& entry : plan.entries) {
      const size_t local = LocalOf(rank, entry.source);
      std::vector<layout::StridedCopy> copies;
      layout::AppendCopies(entry.pieces, LocalView(local), ImageView(entry), copies);
      for (const layout::StridedCopy& copy : copies) bytes += copy.bytes();
      REQUIRE(layout::RunCopies(copies, memories_[local], image));
    }
    CHECK(bytes == plan.bytes);
  }

 private:
  size_t LocalOf(uint32_t rank, uint32_t source) const {
    for (size_t i = 0; i < model_.holdings.size(); ++i) {
      const layout::Holding& holding = model_.holdings[i];
      if (holding.rank == rank && holding.source == source && !holding.copy) return i;
    }
    FAIL("a plan names what its rank does not hold");
    return 0;
  }
  layout::TensorView LocalView(size_t i) const {
    const layout::Holding& holding = model_.holdings[i];
    return layout::TensorView::Contiguous(holding.local_shape, element_bytes_[holding.source], 0);
  }
  layout::TensorView ImageView(const layout::PlanEntry& entry) const {
    const model::TensorMeta& tensor = model_.tensors[entry.tensor];
    return layout::TensorView::Contiguous(layout::Promoted(tensor.shape, model_.sources[entry.source].shape.size()),
                                          element_bytes_[entry.source], tensor.offset);
  }

  const layout::TrainingModel& model_;
  std::vector<uint64_t> element_bytes_;  // by source
  std::vector<Bytes> memories_;          // by holding
};

void CheckIdentity(layout::Random& random, const std::vector<ShardDescription>& descriptions) {
  const auto read = ThroughJson(descriptions);
  INFO(read.status().ToString());
  REQUIRE(read.ok());
  const auto model = BuildTrainingModel(*read);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  const auto plan = layout::CompileExport(*model, OnAgentHost(descriptions));
  INFO(plan.status().ToString());
  REQUIRE(plan.ok());

  World world(*model);
  const Bytes image = RandomBytes(random, world.image_bytes());
  CHECK(plan->bytes == image.size());
  for (uint32_t rank = 0; rank < descriptions.size(); ++rank) {
    const auto import = layout::CompileImport(*model, rank);
    REQUIRE(import.ok());
    world.Import(rank, *import, image);
  }
  const std::vector<Bytes> shards = world.memories();
  Bytes exported = RandomBytes(random, image.size());
  for (uint32_t rank = 0; rank < descriptions.size(); ++rank) world.Export(rank, plan->ranks[rank], exported);
  REQUIRE(exported == image);

  // And from the export back into every shard, replicas and copies included.
  for (Bytes& memory : world.memories()) std::fill(memory.begin(), memory.end(), std::byte{0});
  for (uint32_t rank = 0; rank < descriptions.size(); ++rank)
    world.Import(rank, *layout::CompileImport(*model, rank), exported);
  CHECK(world.memories() == shards);
}

void CheckDigestIgnoresOrder(layout::Random& random, std::vector<ShardDescription> descriptions) {
  const auto DigestOf = [](const std::vector<ShardDescription>& of) {
    const auto model = BuildTrainingModel(of);
    REQUIRE(model.ok());
    const auto plan = layout::CompileExport(*model, OnAgentHost(of));
    REQUIRE(plan.ok());
    return plan->digest;
  };
  const layout::PlanDigest before = DigestOf(descriptions);
  for (ShardDescription& description : descriptions)
    random.Shuffle(std::get<MegatronDescription>(description.parts[0]).parameters);
  // The first mention of a tensor is what orders them.
  for (size_t rank = 1; rank < descriptions.size() && descriptions[rank].parts.size() > 1; ++rank) {
    random.Shuffle(std::get<std::vector<TensorDescription>>(descriptions[rank].parts[1]));
  }
  CHECK(DigestOf(descriptions) == before);
  if (descriptions.size() > 1) {
    descriptions.back().on_agent_host = !descriptions.back().on_agent_host;
    CHECK(DigestOf(descriptions) != before);
  }
}

void CheckNamesDiffer(const std::vector<ShardDescription>& descriptions) {
  for (const ShardDescription& description : descriptions) {
    std::set<std::string> names;
    for (const DescribedLocal& local : LocalsOf(description)) {
      if (!names.insert(local.name).second) FAIL(local.name << " twice on one rank");
    }
  }
}

TEST_CASE("Ranks cover every tensor exactly once, and export after import is the identity, whatever the topology") {
  std::set<std::string> families;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    layout::Random random(seed);
    const Trainer trainer = RandomTrainer(random);
    const rules::Topology& topology = trainer.topology;
    INFO("seed " << seed << " " << trainer.config.dump() << " layout " << topology.pipeline_layout);
    auto descriptions =
        ExpectedDescriptions(trainer.config.dump(), topology, trainer.ranks_per_host, trainer.fused_norms);
    INFO(descriptions.status().ToString());
    REQUIRE(descriptions.ok());
    CheckNamesDiffer(*descriptions);
    families.insert(trainer.config["model_type"]);
    if (seed % kWithBytes != 0) {
      const auto model = BuildTrainingModel(*descriptions);
      REQUIRE(model.status().message().empty());
      REQUIRE(layout::CompileExport(*model, OnAgentHost(*descriptions)).status().message().empty());
      continue;
    }
    if (random.OneIn(2)) AddTensorPart(random, *descriptions);
    CheckIdentity(random, *descriptions);
    CheckDigestIgnoresOrder(random, *descriptions);
  }
  CHECK(families.size() == rules::KnownFamilies().size());
}

}  // namespace
}  // namespace lockstep::plan
