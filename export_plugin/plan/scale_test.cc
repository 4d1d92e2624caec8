// Plans of the size that real trainers have: compiled whole, proved, and in no more time than a start-up may take.
#include <catch2/catch.hpp>
#include <chrono>

#include "common/base/text.h"
#include "common/layout/copy_plan.h"
#include "export_plugin/plan/shard_description.h"

namespace lockstep::plan {
namespace {

// The bound on time is far above what the two calls take (about a second): it catches work that grows with the square
// of the model.
void CheckPlan(const Result<std::vector<ShardDescription>>& descriptions, size_t tensors) {
  REQUIRE(descriptions.status().message().empty());
  const auto start = std::chrono::steady_clock::now();
  const auto model = BuildTrainingModel(*descriptions);
  REQUIRE(model.status().message().empty());
  const auto plan = layout::CompileExport(*model, OnAgentHost(*descriptions));
  REQUIRE(plan.status().message().empty());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  WARN(model->holdings.size() << " holdings, " << descriptions->size() << " ranks: " << took.count() << " s");
  CHECK(model->tensors.size() == tensors);
  CHECK(plan->bytes == model->tensors.back().offset + *model::TensorBytes(model->tensors.back()));
  CHECK(took.count() < 20);
}

TEST_CASE("A plan for 128 experts in 48 layers on 64 ranks") {
  const char* config = R"({"model_type": "qwen3_moe", "dtype": "bfloat16", "num_hidden_layers": 48,
      "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 151936,
      "num_experts": 128, "moe_intermediate_size": 768})";
  CheckPlan(ExpectedDescriptions(config, {.world = 64, .tensor = 2, .expert = 8}, 0, true), 18'867);
}

TEST_CASE("A plan for 256 experts in 61 layers on 512 ranks") {
  const char* config = R"({"model_type": "deepseek_v3", "dtype": "bfloat16", "num_hidden_layers": 61,
      "hidden_size": 7168, "num_attention_heads": 128, "vocab_size": 129280, "intermediate_size": 18432,
      "n_routed_experts": 256, "moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 3,
      "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128})";
  const rules::Topology topology{
      .world = 512, .tensor = 8, .pipeline = 8, .expert = 32, .first_stage_layers = 7, .last_stage_layers = 6};
  CheckPlan(ExpectedDescriptions(config, topology, 0, true), 45'395);
}

TEST_CASE("A plan for fully sharded tensors on 1024 ranks") {
  std::vector<ShardDescription> descriptions(1024);
  for (uint32_t rank = 0; rank < descriptions.size(); ++rank) {
    std::vector<TensorDescription> tensors;
    for (uint32_t i = 0; i < 200; ++i) {
      TensorDescription& tensor = tensors.emplace_back(TensorDescription{.name = Cat("t", i), .shape = {4096, 64}});
      tensor.boxes = layout::ShardOf(tensor.shape, 0, rank, 1024);
      // Every other one is a grid: rows over 32 times columns over 32.
      if (i % 2 == 1) tensor.boxes = layout::Box({0, 0}, {rank / 32 * 128, rank % 32 * 2}, {128, 2});
      tensor.local_shape = tensor.boxes[0].size;
    }
    descriptions[rank].parts = {std::move(tensors)};
  }
  CheckPlan(descriptions, 200);
}

}  // namespace
}  // namespace lockstep::plan
