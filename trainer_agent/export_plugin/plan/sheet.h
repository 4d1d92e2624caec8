// RankSheet: what one rank says of itself before the first publish. Every rank gathers the sheets of all and compiles
// the same plan from them. JSON (FORMAT.md), so that anybody can print, keep and replay it.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/layout/training_model.h"
#include "trainer_agent/export_plugin/rules/megatron.h"

namespace lockstep {

// Parameters of a Megatron-core model, to be exported by the family's rules.
struct MegatronSheet {
  std::string config;  // the HuggingFace config.json, normalised: the same text on every rank
  RankPlace place;
  std::vector<LocalParameter> parameters;  // in the order in which the rank gives their memory
};

// A tensor that is described by itself: a DTensor, a plain tensor, an adapter.
struct TensorSheet {
  // A HuggingFace tensor made of this one: the box of `size` at `from`, whole.
  struct Into {
    std::string name;
    Extents shape;
    Extents from;
  };

  std::string name;            // unique in the part
  DType dtype = DType::kBF16;  // of the HuggingFace tensors
  Extents shape;               // whole
  Extents local_shape;
  Pieces boxes;  // local -> whole; empty: this rank holds nothing of it
  bool frozen = false;
  std::vector<Into> into;  // empty: one tensor of the same name and shape
};

using PartSheet = std::variant<MegatronSheet, std::vector<TensorSheet>>;

struct RankSheet {
  bool beside_agent = true;
  std::vector<PartSheet> parts;
};

// kBadData says what is wrong and where ("parts[0].parameters[3].shape"). Never trusts its input.
Result<RankSheet> ParseSheet(std::string_view json);

// The TrainingModel that the sheets of all ranks, in rank order, describe. Tensors come in the order of parts, then of
// the family's rules or of first mention. Sources of part p are the ones that come p-th. kBadData names the part,
// parameter and ranks: parts of different kinds or configurations, a tensor described differently, two parts that make
// the same HuggingFace tensor.
Result<TrainingModel> BuildTrainingModel(const std::vector<RankSheet>& sheets);

// Where each of rank `rank`'s local tensors (part by part, in the order of its sheet) comes from: its source.
Result<std::vector<uint32_t>> SourcesOfRank(const std::vector<RankSheet>& sheets, uint32_t rank,
                                            const TrainingModel& model);

// The sheets that the ranks of a Megatron trainer of this shape would give: plans without a trainer.
Result<std::vector<RankSheet>> ExpectedSheets(const std::string& config_json, const Topology& topology,
                                              uint32_t ranks_per_host, bool fused_norms);

}  // namespace lockstep
