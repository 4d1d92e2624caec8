// Megatron-core to HuggingFace: the family tables at work.
//
// Names of parameters are those of `named_parameters()` of a model chunk, with layer numbers made global (Megatron's
// own `layer_number - 1`); experts keep their local numbers, the coordinates make them global. `module.` prefixes are
// stripped; `_extra_state` is no parameter and refused; the buffer `mlp.router.expert_bias` counts as one.
#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/layout/training_model.h"
#include "export_plugin/rules/model_config.h"
#include "export_plugin/rules/topology.h"

namespace lockstep::rules {

// A parameter of one rank, as its model chunk names it.
struct LocalParameter {
  std::string name;  // "decoder.layers.17.self_attention.linear_qkv.weight"
  model::DType dtype = model::DType::kBF16;
  layout::Extents shape;  // local
  bool frozen = false;
};

// The rules for one model: its HuggingFace tensors in export order, the training tensors and the conversions between
// them. Everything follows from the configuration: this is the metadata-only dry run.
class MegatronRules {
 public:
  static Result<MegatronRules> Create(ModelConfig config);

  const ModelConfig& config() const { return config_; }
  // tensors, groups, sources and conversions; no holdings.
  const layout::TrainingModel& model() const { return model_; }

  // The part of a source in model() that `parameter` holds on a rank; the result's `rank` is left 0. Rows of a padded
  // vocabulary beyond the real one belong to no source: a shard of nothing but padding has no pieces. A tied head, and
  // an embedding beyond the first pipeline stage, are copies. kBadData names the parameter: no rule covers it, or its
  // shape is not what the rule says for this place (both shapes and the sizes are given).
  Result<layout::Holding> HoldingOf(const LocalParameter& parameter, const RankCoordinates& place) const;

  // The parameters that a rank of `topology` has, as Megatron builds them with its local layer spec (`fused_norms`
  // false) or Transformer Engine's (true): what plans without a running trainer are made from.
  Result<std::vector<LocalParameter>> ExpectedParameters(const Topology& topology, uint32_t rank,
                                                         bool fused_norms) const;

 private:
  explicit MegatronRules(ModelConfig config) : config_(std::move(config)) {}

  ModelConfig config_;
  layout::TrainingModel model_;
  std::unordered_map<std::string, uint32_t> sources_;  // of model_, by name
};

// The rows of embedding and head with Megatron's padding.
uint64_t PaddedVocabulary(uint64_t vocabulary, uint64_t divisible_by, uint32_t tensor);

}  // namespace lockstep::rules
