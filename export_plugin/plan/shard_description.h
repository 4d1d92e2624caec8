// ShardDescription: what one rank says of itself before the first publish. Every rank gathers all descriptions and
// compiles the same plan from them. It is JSON (FORMAT.md), so that it can be printed, kept and replayed.
//
// Pure functions, thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/layout/training_model.h"
#include "export_plugin/rules/megatron.h"

namespace lockstep::plan {

inline constexpr uint64_t kMaxDescriptionBytes = uint64_t{1} << 30;
inline constexpr size_t kMaxDescriptionParts = 64;
inline constexpr size_t kMaxBoxes = 4096;           // of one tensor on one rank
inline constexpr size_t kMaxDescriptions = 65'536;  // ranks of a trainer
inline constexpr uint32_t kMaxGroup = 65'536;       // ranks of a parallel group

// Parameters of a Megatron-core model, to be exported by the family's rules.
struct MegatronDescription {
  std::string config;  // the HuggingFace config.json, normalised: the same text on every rank
  rules::RankCoordinates place;
  std::vector<rules::LocalParameter> parameters;  // in the order in which the rank gives their memory
};

// A tensor that is described by itself: a DTensor, a plain tensor, an adapter.
struct TensorDescription {
  // A HuggingFace tensor made of this one: its box of `size` at `at` is the one at `from` of this tensor.
  struct Into {
    std::string name;
    layout::Extents shape;
    layout::Extents from;
    layout::Extents at;    // empty: the tensor is made of this one alone, whole
    layout::Extents size;  // as `at`
    layout::Extents as;    // the shape that `at` and `size` are in, of as many elements; empty: `shape`

    // May have fewer dimensions than the source: see Promoted().
    const layout::Extents& planned() const { return as.empty() ? shape : as; }

    bool operator==(const Into&) const = default;
  };

  std::string name;                          // unique in the model
  model::DType dtype = model::DType::kBF16;  // of the HuggingFace tensors
  layout::Extents shape;                     // whole
  layout::Extents local_shape;
  layout::Pieces boxes;  // local -> whole, none of them empty; no box: this rank holds nothing of it
  bool frozen = false;
  std::vector<Into> into;  // empty: one tensor of the same name and shape
};

using PartDescription = std::variant<MegatronDescription, std::vector<TensorDescription>>;

struct ShardDescription {
  bool on_agent_host = true;
  std::vector<PartDescription> parts;
};

// One local tensor of a description.
struct DescribedLocal {
  std::string name;
  std::optional<model::DType> dtype;  // nothing: the description does not say
  layout::Extents shape;
};

// kBadData says what is wrong and where ("parts[0].parameters[3].shape"). Never trusts its input.
Result<ShardDescription> ParseDescription(std::string_view json);

// The text that ParseDescription gives `description` back for.
std::string ToJson(const ShardDescription& description);

// The rank's local tensors: part by part, in the order of the description. Wherever a rank's tensors are counted, it is
// so.
std::vector<DescribedLocal> LocalsOf(const ShardDescription& description);

// The TrainingModel that the descriptions of all ranks, in rank order, describe. Tensors come in the order of parts,
// then of the family's rules or of first mention; sources likewise. Holdings: rank by rank, one for each of
// LocalsOf(description), in that order. A source is frozen when every rank that names it says so. kBadData names the
// part, parameter and ranks: parts of different kinds or configurations, a tensor described differently, one source
// held twice by a rank, two tensors of one name.
Result<layout::TrainingModel> BuildTrainingModel(const std::vector<ShardDescription>& descriptions);

// The source of each of a rank's local tensors. REQUIRES a model of BuildTrainingModel.
std::vector<uint32_t> SourcesOfRank(const layout::TrainingModel& model, uint32_t rank);

// For CompileExport.
std::vector<bool> OnAgentHost(const std::vector<ShardDescription>& descriptions);

// The descriptions that the ranks of a Megatron trainer of this shape would give: plans without a trainer. The first
// `ranks_per_host` ranks are on the agent's host (0: all).
Result<std::vector<ShardDescription>> ExpectedDescriptions(std::string_view config_json,
                                                           const rules::Topology& topology, uint32_t ranks_per_host,
                                                           bool fused_norms);

}  // namespace lockstep::plan
