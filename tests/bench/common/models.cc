#include "tests/bench/common/models.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_map>
#include <utility>

#include "common/layout/strided_copy.h"
#include "export_plugin/plan/shard_description.h"
#include "tests/bench/common/bench.h"

namespace lockstep::bench {
namespace {

constexpr uint64_t kAlignment = 256, kHeadRows = 128;
constexpr std::string_view kExperts = ".experts.";

class RankMaker {
 public:
  RankMaker(uint32_t rank, uint32_t ranks) : rank_(rank), ranks_(ranks), made_{.rank = rank, .world = ranks} {}

  engine::RankDescription Make(const model::ModelLayout& layout) {
    for (const model::TensorMeta& tensor : layout.tensors()) Add(tensor);
    uint64_t end = 0;
    for (engine::EngineParameter& parameter : made_.parameters) {
      parameter.strides = layout::ContiguousStrides(parameter.shape);
      parameter.offset = (end + kAlignment - 1) / kAlignment * kAlignment;
      end = parameter.offset + engine::ExtentBytes(parameter);
    }
    made_.memories = {end};
    return std::move(made_);
  }

 private:
  void Add(const model::TensorMeta& tensor) {
    const auto has = [&](std::string_view part) { return tensor.name.find(part) != std::string::npos; };
    const size_t dim = has("o_proj") || has("down_proj") ? 1 : 0;
    const bool whole = has("norm") || has("mlp.gate.");
    engine::Slice slice{tensor.name, layout::Extents(tensor.shape.size()), tensor.shape, {}};
    if (!whole) slice.shape[dim] /= ranks_;
    if (!whole) slice.from[dim] = rank_ * slice.shape[dim];
    if ((has("k_proj") || has("v_proj")) && slice.shape[0] < kHeadRows) {  // more ranks than heads share them
      slice.shape[0] = kHeadRows;
      slice.from[0] = rank_ * (tensor.shape[0] / kHeadRows) / ranks_ * kHeadRows;
    }
    std::string name = tensor.name;
    for (const char* part : {"q_proj", "k_proj", "v_proj"}) Fuse(name, part, "qkv_proj");
    for (const char* part : {"gate_proj", "up_proj"}) Fuse(name, part, "gate_up_proj");
    if (const size_t experts = name.find(kExperts); experts != std::string::npos) {
      const size_t number = experts + kExperts.size();
      const uint64_t expert = std::stoull(name.substr(number));
      name.erase(number, name.find('.', number) + 1 - number);
      return Put(name, slice, {expert, has("up_proj") ? slice.shape[0] : 0, 0});
    }
    layout::Extents at(tensor.shape.size());
    if (dim == 0) at[0] = Named(name).shape.empty() ? 0 : Named(name).shape[0];  // behind the rows that are there
    Put(name, slice, at);
  }

  static void Fuse(std::string& name, std::string_view part, std::string_view into) {
    const size_t at = name.find("." + std::string(part));
    if (at != std::string::npos) name.replace(at + 1, part.size(), into);
  }

  engine::EngineParameter& Named(const std::string& name) {
    const auto [found, fresh] = by_name_.try_emplace(name, made_.parameters.size());
    if (fresh) made_.parameters.push_back({.name = name});
    return made_.parameters[found->second];
  }

  void Put(const std::string& name, engine::Slice slice, const layout::Extents& at) {
    engine::EngineParameter& parameter = Named(name);
    const layout::Extents box = layout::Promoted(slice.shape, at.size());
    parameter.shape.resize(at.size());
    for (size_t k = 0; k < at.size(); ++k) parameter.shape[k] = std::max(parameter.shape[k], at[k] + box[k]);
    slice.at = at;
    parameter.slices.push_back(std::move(slice));
  }

  const uint32_t rank_, ranks_;
  engine::RankDescription made_;
  std::unordered_map<std::string, size_t> by_name_;
};

}  // namespace

std::vector<model::TensorMeta> TensorsOf(std::string_view config) {
  const auto alone = OrDie(plan::ExpectedDescriptions(config, {}, 0, /*fused_norms=*/true));
  std::vector<model::TensorMeta> tensors = OrDie(plan::BuildTrainingModel(alone)).tensors;
  OrDie(model::AssignOffsets(tensors));
  return tensors;
}

std::shared_ptr<const model::ModelLayout> LayoutOf(std::string_view config) {
  return OrDie(model::ModelLayout::Create(TensorsOf(config)));
}

std::shared_ptr<const model::ModelLayout> QwenLayout(uint64_t bytes) {
  constexpr double kWhole = 3.04e9;
  const auto wanted = static_cast<double>(bytes);
  const bool small = wanted < 0.2e9;
  const auto vocabulary = static_cast<uint64_t>(151'936 * std::min(1.0, wanted / kWhole)) / 64 * 64;
  Json config = {{"model_type", "qwen3"},
                 {"torch_dtype", "bfloat16"},
                 {"hidden_size", small ? 512 : 2048},
                 {"intermediate_size", small ? 1536 : 6144},
                 {"num_attention_heads", 16},
                 {"num_key_value_heads", 8},
                 {"head_dim", 128},
                 {"vocab_size", std::max<uint64_t>(1024, vocabulary)},
                 {"tie_word_embeddings", true}};
  const auto of_layers = [&](double layers) {
    config["num_hidden_layers"] = static_cast<uint64_t>(layers);
    return LayoutOf(config.dump());
  };
  const auto one = static_cast<double>(of_layers(1)->data_bytes());
  const double layer = static_cast<double>(of_layers(2)->data_bytes()) - one;
  return of_layers(std::max(2.0, std::round(1 + (wanted - one) / layer)));
}

std::vector<engine::RankDescription> QwenRanks(const model::ModelLayout& layout, uint32_t ranks) {
  std::vector<engine::RankDescription> made;
  for (uint32_t rank = 0; rank < ranks; ++rank) made.push_back(RankMaker(rank, ranks).Make(layout));
  return made;
}

}  // namespace lockstep::bench
