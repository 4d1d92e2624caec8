// Plans of the size that real engines have: compiled whole, proved, and in no more time than an attach may take.
#include <catch2/catch.hpp>
#include <ctime>

#include "raas_receiver/engine/placement/plan/placement_plan.h"
#include "raas_receiver/engine/placement/plan/random_engine.h"

namespace lockstep::engine {
namespace {

// A mixture of experts under `ranks` of tensor parallelism, with experts cut by it or, with `whole_experts`, dealt.
struct Mixture {
  uint64_t layers = 0;
  uint64_t experts = 0;
  uint64_t hidden = 0;
  uint64_t expert_width = 0;
  uint64_t vocabulary = 0;
  uint64_t query_rows = 0;
  uint64_t key_rows = 0;  // of one head
  uint64_t key_heads = 0;
  uint32_t ranks = 0;
  bool whole_experts = false;
};

class Maker {
 public:
  explicit Maker(const Mixture& mixture) : mix_(mixture), engine_{.ranks = std::vector<RankDescription>(mix_.ranks)} {}

  TestEngine Make() {
    for (uint32_t rank = 0; rank < mix_.ranks; ++rank) {
      engine_.ranks[rank] = {.rank = rank, .world = mix_.ranks};
      engine_.ranks[rank].memories.assign(1, 0);
    }
    Rows("embed_tokens", mix_.vocabulary, mix_.hidden);
    for (uint64_t layer = 0; layer < mix_.layers; ++layer) Layer("layers." + std::to_string(layer) + ".");
    Whole("norm", {mix_.hidden});
    Rows("lm_head", mix_.vocabulary, mix_.hidden);
    REQUIRE(model::AssignOffsets(tensors_).ok());
    engine_.layout = *model::ModelLayout::Create(tensors_);
    return std::move(engine_);
  }

 private:
  void Tensor(const std::string& name, layout::Extents shape) {
    tensors_.push_back({.name = name, .dtype = model::DType::kBF16, .shape = std::move(shape)});
  }

  void Add(uint32_t rank, const std::string& name, const layout::Extents& shape, std::vector<Slice> slices) {
    uint64_t& bytes = engine_.ranks[rank].memories[0];
    engine_.ranks[rank].parameters.push_back({.name = name,
                                              .shape = shape,
                                              .strides = layout::ContiguousStrides(shape),
                                              .offset = bytes,
                                              .slices = std::move(slices)});
    bytes += layout::ElementCount(shape) * 2;
  }

  void Whole(const std::string& name, const layout::Extents& shape) {
    Tensor(name, shape);
    for (uint32_t rank = 0; rank < mix_.ranks; ++rank) {
      Add(rank, name, shape, {{name, layout::Extents(shape.size()), shape, layout::Extents(shape.size())}});
    }
  }

  void Rows(const std::string& name, uint64_t rows, uint64_t columns) {
    Tensor(name, {rows, columns});
    const uint64_t own = rows / mix_.ranks;
    for (uint32_t rank = 0; rank < mix_.ranks; ++rank) {
      Add(rank, name, {own, columns}, {{name, {rank * own, 0}, {own, columns}, {0, 0}}});
    }
  }

  void Layer(const std::string& layer) {
    Whole(layer + "input_norm", {mix_.hidden});
    Attention(layer);
    Whole(layer + "post_norm", {mix_.hidden});
    Whole(layer + "gate", {mix_.experts, mix_.hidden});
    for (uint64_t expert = 0; expert < mix_.experts; ++expert) {
      const std::string name = layer + "experts." + std::to_string(expert);
      Tensor(name + ".gate_proj", {mix_.expert_width, mix_.hidden});
      Tensor(name + ".up_proj", {mix_.expert_width, mix_.hidden});
      Tensor(name + ".down_proj", {mix_.hidden, mix_.expert_width});
    }
    for (uint32_t rank = 0; rank < mix_.ranks; ++rank) Experts(layer, rank);
  }

  void Attention(const std::string& layer) {
    Tensor(layer + "q_proj", {mix_.query_rows, mix_.hidden});
    for (const char* name : {"k_proj", "v_proj"}) Tensor(layer + name, {mix_.key_heads * mix_.key_rows, mix_.hidden});
    Tensor(layer + "o_proj", {mix_.hidden, mix_.query_rows});
    Whole(layer + "q_norm", {mix_.key_rows});
    Whole(layer + "k_norm", {mix_.key_rows});
    const uint64_t q = mix_.query_rows / mix_.ranks;
    const uint64_t heads = std::max<uint64_t>(mix_.key_heads / mix_.ranks, 1);
    const uint64_t k = heads * mix_.key_rows;
    for (uint32_t rank = 0; rank < mix_.ranks; ++rank) {
      const uint64_t first = rank * mix_.key_heads / mix_.ranks * mix_.key_rows;
      Add(rank, layer + "qkv_proj", {q + 2 * k, mix_.hidden},
          {{layer + "q_proj", {rank * q, 0}, {q, mix_.hidden}, {0, 0}},
           {layer + "k_proj", {first, 0}, {k, mix_.hidden}, {q, 0}},
           {layer + "v_proj", {first, 0}, {k, mix_.hidden}, {q + k, 0}}});
      Add(rank, layer + "o_proj", {mix_.hidden, q}, {{layer + "o_proj", {0, rank * q}, {mix_.hidden, q}, {0, 0}}});
    }
  }

  void Experts(const std::string& layer, uint32_t rank) {
    const uint64_t parts = mix_.whole_experts ? 1 : mix_.ranks;
    const uint64_t width = mix_.expert_width / parts;
    const uint64_t from = mix_.whole_experts ? 0 : rank * width;
    const uint64_t count = mix_.whole_experts ? mix_.experts / mix_.ranks : mix_.experts;
    const uint64_t first = mix_.whole_experts ? rank * count : 0;
    std::vector<Slice> w13, w2;
    for (uint64_t i = 0; i < count; ++i) {
      const std::string name = layer + "experts." + std::to_string(first + i);
      w13.push_back({name + ".gate_proj", {from, 0}, {width, mix_.hidden}, {i, 0, 0}});
      w13.push_back({name + ".up_proj", {from, 0}, {width, mix_.hidden}, {i, width, 0}});
      w2.push_back({name + ".down_proj", {0, from}, {mix_.hidden, width}, {i, 0, 0}});
    }
    Add(rank, layer + "w13", {count, 2 * width, mix_.hidden}, std::move(w13));
    Add(rank, layer + "w2", {count, mix_.hidden, width}, std::move(w2));
  }

  Mixture mix_;
  TestEngine engine_;
  std::vector<model::TensorMeta> tensors_;
};

// The bound on the processor's time is far above what it takes (well under a second): it is there to catch work that
// grows with the square of the model. Answers how many copies the ranks have together.
size_t CheckPlan(const Mixture& mixture) {
  const TestEngine engine = Maker(mixture).Make();
  const std::clock_t start = std::clock();
  const auto plan = CompilePlacement(*engine.layout, engine.ranks, {});
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  INFO(plan.status().ToString());
  REQUIRE(plan.ok());
  size_t copies = 0;
  for (uint32_t rank = 0; rank < mixture.ranks; ++rank) {
    copies += (**plan)[rank].copies().size();
    CHECK((**plan)[rank].bytes() == engine.ranks[rank].memories[0]);
  }
  WARN(engine.layout->tensors().size() << " tensors, " << mixture.ranks << " ranks, " << copies
                                       << " copies: " << seconds << " s");
  CHECK(seconds < 20);
  return copies;
}

TEST_CASE("A plan for 128 experts in 48 layers on 8 ranks that cut each expert") {
  // Gate, up and down give a copy to each rank, and the rest of a layer is small next to these.
  CHECK(CheckPlan({48, 128, 2048, 768, 151936, 4096, 128, 4, 8, false}) < 8 * 48 * (128 * 3 + 10));
}

TEST_CASE("A plan for 128 experts in 48 layers on 8 ranks that share the experts out") {
  CHECK(CheckPlan({48, 128, 2048, 768, 151936, 4096, 128, 4, 8, true}) < 48 * (3 * 128 + 8 * 10));
}

TEST_CASE("A plan for 256 experts in 58 layers on 16 ranks that cut each expert") {
  CheckPlan({58, 256, 7168, 2048, 129280, 16384, 128, 128, 16, false});
}

}  // namespace
}  // namespace lockstep::engine
