// Plans of the size that real trainers have: compiled whole, proved, and in no more time than a start-up may take.
#include <catch2/catch.hpp>
#include <chrono>

#include "common/layout/copy_plan.h"
#include "common/layout/layout_testing.h"

namespace lockstep::layout {
namespace {

// A mixture of experts, by Megatron's way of placing it: ranks are pipeline stages of `stage_ranks`, within which
// tensor parallelism varies fastest and experts are spread over groups of `expert_parallel`.
struct Mixture {
  uint64_t layers = 0;
  uint64_t experts = 0;
  uint64_t hidden = 0;
  uint64_t expert_width = 0;
  uint64_t vocabulary = 0;
  uint64_t query_groups = 0;
  uint64_t group_rows = 0;  // of q; k and v have 128
  bool scales = false;      // each expert matrix has a tensor of block scales with it
  uint32_t ranks = 0;
  uint32_t stages = 0;
  uint32_t tensor_parallel = 0;
  uint32_t expert_parallel = 0;
};

class Builder {
 public:
  explicit Builder(const Mixture& mixture) : mix_(mixture) {}

  TrainingModel Build() {
    Vocabulary("embed", 0);
    for (uint64_t layer = 0; layer < mix_.layers; ++layer) Layer(layer);
    HoldWhole(mix_.stages - 1, Same("model.norm", {mix_.hidden}));
    Vocabulary("head", mix_.stages - 1);
    REQUIRE(model::AssignOffsets(model_.tensors).ok());
    return std::move(model_);
  }

 private:
  uint32_t Tensor(const std::string& name, Extents shape) {
    model_.tensors.push_back({.name = name, .dtype = model::DType::kBF16, .shape = std::move(shape)});
    model_.groups.push_back(0);
    return static_cast<uint32_t>(model_.tensors.size() - 1);
  }

  uint32_t Source(const std::string& name, const Extents& shape) {
    model_.sources.push_back({.name = name, .shape = shape});
    return static_cast<uint32_t>(model_.sources.size() - 1);
  }

  uint32_t StageRanks() const { return mix_.ranks / mix_.stages; }

  void Hold(uint32_t rank, uint32_t source, Extents local, Pieces pieces) {
    model_.holdings.push_back({rank, source, std::move(local), std::move(pieces), false});
  }

  void HoldWhole(uint32_t stage, uint32_t source) {
    for (uint32_t i = 0; i < StageRanks(); ++i) {
      const Extents& shape = model_.sources[source].shape;
      Hold(stage * StageRanks() + i, source, shape, Whole(shape));
    }
  }

  void HoldShards(uint32_t stage, uint32_t source, size_t dim) {
    for (uint32_t i = 0; i < StageRanks(); ++i) {
      const Pieces shard = ShardOf(model_.sources[source].shape, dim, i % mix_.tensor_parallel, mix_.tensor_parallel);
      Hold(stage * StageRanks() + i, source, shard[0].size, shard);
    }
  }

  uint32_t Same(const std::string& name, const Extents& shape) {
    const uint32_t source = Source(name, shape);
    model_.conversions.push_back({source, Tensor(name, shape), Whole(shape)});
    return source;
  }

  void Vocabulary(const std::string& name, uint32_t stage) {
    const uint32_t source = Source(name, {mix_.vocabulary + 128, mix_.hidden});
    const Extents shape{mix_.vocabulary, mix_.hidden};
    model_.conversions.push_back({source, Tensor(name, shape), Whole(shape)});
    HoldShards(stage, source, 0);
  }

  void Layer(uint64_t layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    const auto stage = static_cast<uint32_t>(layer * mix_.stages / mix_.layers);
    for (const char* norm : {"input_layernorm", "post_attention_layernorm", "q_norm", "k_norm"}) {
      HoldWhole(stage, Same(at + norm, {mix_.hidden}));
    }
    HoldWhole(stage, Same(at + "gate", {mix_.experts, mix_.hidden}));
    HoldShards(stage, Same(at + "o_proj", {mix_.hidden, mix_.query_groups * mix_.group_rows}), 1);
    Attention(at, stage);
    for (uint64_t expert = 0; expert < mix_.experts; ++expert) {
      const std::string name = at + "mlp.experts." + std::to_string(expert) + ".";
      const auto place = static_cast<uint32_t>(expert * mix_.expert_parallel / mix_.experts);
      Expert(name, stage, place, mix_.expert_width, mix_.hidden);
      if (mix_.scales) Expert(name + "scale.", stage, place, mix_.expert_width / 128, mix_.hidden / 128);
    }
  }

  void Attention(const std::string& at, uint32_t stage) {
    const uint64_t rows = mix_.group_rows + 256;
    const uint32_t source = Source(at + "linear_qkv", {mix_.query_groups * rows, mix_.hidden});
    uint64_t from = 0;
    for (const auto& [name, count] :
         {std::pair<const char*, uint64_t>{"q_proj", mix_.group_rows}, std::pair<const char*, uint64_t>{"k_proj", 128},
          std::pair<const char*, uint64_t>{"v_proj", 128}}) {
      Pieces pieces;
      for (uint64_t group = 0; group < mix_.query_groups; ++group) {
        pieces.push_back({{group * rows + from, 0}, {group * count, 0}, {count, mix_.hidden}});
      }
      model_.conversions.push_back({source, Tensor(at + name, {mix_.query_groups * count, mix_.hidden}), pieces});
      from += count;
    }
    HoldShards(stage, source, 0);
  }

  void Expert(const std::string& name, uint32_t stage, uint32_t place, uint64_t width, uint64_t hidden) {
    const uint32_t fc1 = Source(name + "linear_fc1", {2 * width, hidden});
    const Extents half{width, hidden};
    model_.conversions.push_back({fc1, Tensor(name + "gate_proj", half), Box({0, 0}, {0, 0}, half)});
    model_.conversions.push_back({fc1, Tensor(name + "up_proj", half), Box({width, 0}, {0, 0}, half)});
    const uint32_t fc2 = Same(name + "down_proj", {hidden, width});
    for (uint32_t i = place; i < StageRanks(); i += mix_.expert_parallel) {
      for (const uint32_t source : {fc1, fc2}) {
        const Extents& shape = model_.sources[source].shape;
        Hold(stage * StageRanks() + i, source, shape, Whole(shape));
      }
    }
  }

  Mixture mix_;
  TrainingModel model_;
};

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

// The bound on time is far above what it takes (well under a second): it is there to catch work that grows with the
// square of the model.
void CheckPlan(const TrainingModel& model, uint32_t ranks) {
  uint64_t bytes = 0;
  for (const model::TensorMeta& tensor : model.tensors) bytes += *model::TensorBytes(tensor);
  const auto start = std::chrono::steady_clock::now();
  const auto plan = CompileExport(model, std::vector<bool>(ranks, true));
  const double seconds = Seconds(start);
  REQUIRE(plan.status().message().empty());
  WARN(model.tensors.size() << " tensors, " << model.holdings.size() << " holdings, " << ranks << " ranks: " << seconds
                            << " s");
  CHECK(plan->bytes == bytes);
  CHECK(seconds < 20);
}

TEST_CASE("A plan for 128 experts in 48 layers on 64 ranks") {
  const Mixture mixture{48, 128, 2048, 768, 151936, 4, 1024, false, 64, 1, 2, 8};
  const TrainingModel model = Builder(mixture).Build();
  CHECK(model.tensors.size() == 18'867);
  CheckPlan(model, mixture.ranks);
}

TEST_CASE("A plan for 256 experts with scales in 58 layers on 512 ranks") {
  const Mixture mixture{58, 256, 7168, 2048, 129280, 8, 2048, true, 512, 8, 8, 32};
  CheckPlan(Builder(mixture).Build(), mixture.ranks);
}

TEST_CASE("A plan for fully sharded tensors on 1024 ranks") {
  TrainingModel model;
  for (uint32_t i = 0; i < 200; ++i) {
    const Extents shape{4096, 64};
    model.tensors.push_back({.name = "t" + std::to_string(i), .dtype = model::DType::kBF16, .shape = shape});
    model.groups.push_back(i);
    model.sources.push_back({.name = "t" + std::to_string(i), .shape = shape});
    model.conversions.push_back({i, i, Whole(shape)});
    // Every other one is a grid: rows over 32 times columns over 32.
    for (uint32_t rank = 0; rank < 1024; ++rank) {
      Pieces shard = ShardOf(shape, 0, rank, 1024);
      if (i % 2 == 1) shard = {{{0, 0}, {rank / 32 * 128, rank % 32 * 2}, {128, 2}}};
      model.holdings.push_back({rank, i, shard[0].size, shard, false});
    }
  }
  CheckPlan(model, 1024);
}

}  // namespace
}  // namespace lockstep::layout
