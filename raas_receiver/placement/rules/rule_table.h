// An engine's parameters as data: for every model family the parameters that one rank has, how parallelism cuts them,
// and the HuggingFace tensors that they are made of. docs/placement.md says what they cover,
// docs/walkthroughs/family.md how they are extended.
//
// Shapes are nowhere: they follow from the HuggingFace tensors. Tables are constant and live for the whole process.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep::placement {

// In which part of a model a row applies; it decides the prefix of its names.
enum class RuleScope : uint8_t {
  kModel,   // once, before the layers; names are whole
  kLayer,   // every layer of the decoder: model.layers.N.
  kDense,   // layers without experts
  kSparse,  // layers with experts
  kEnd,     // once, after the layers; names are whole
};

// How a rank's part is cut out of the tensors and put together: pieces lie below one another (dimension 0).
enum class ParameterCut : uint8_t {
  kWhole,         // all of every tensor, on every rank
  kColumn,        // rows, over the tensor group (the output of a linear layer)
  kRow,           // columns, over the tensor group (its input)
  kQkv,           // q, k, v: of each its heads, over the tensor group; k and v heads are repeated above one rank a head
  kGateUp,        // gate, up (or one tensor that is [gate; up]): rows of each, over the tensor group
  kVocabulary,    // rows, after padding them, over the tensor group
  kExpertGateUp,  // [experts, gate and up, in]: experts over the expert group, rows of each over the expert-tensor
                  // group
  kExpertDown,    // [experts, out, in]: experts likewise, columns over the expert-tensor group
};

struct ParameterRule {
  RuleScope where;
  // Names within `where`, of the engine's releases, newest first, apart by '|'.
  std::string_view parameter;
  ParameterCut cut;
  // Names within `where`, in the order in which they lie in the parameter, apart by '|'; `{}` is an expert's number.
  std::string_view tensors;
  // The row is there where this tensor is, or, after a '!', where it is not. Empty: always.
  std::string_view when = {};
  // Taken instead where the model lacks `tensors`; the engine may then have no such parameter.
  std::string_view tied = {};
  // Of expert stacks: the tensor in place of `tensors` that has all experts in one.
  std::string_view stacked = {};
  // Of expert stacks: tensors of the shared expert, which EnginePlace::fused_shared_experts puts behind the routed
  // ones.
  std::string_view shared = {};
  // Only there while shared experts are not fused.
  bool shared_expert = false;
};

using ParameterRules = std::span<const ParameterRule>;

struct FamilyRules {
  std::string_view model_type;           // config.json's
  std::span<const ParameterRules> rows;  // in the engine's order
  bool mtp = false;  // layers for multi-token prediction may follow the decoder's: the engine leaves them out
};

struct EngineRules {
  std::string_view name;
  std::span<const FamilyRules> families;  // by name
  // Rows of a vocabulary are padded to a multiple of this, ...
  uint64_t vocabulary_padding = 64;
  // ... and of this times the tensor group's size when that group cannot share them.
  bool pads_for_group = false;
  // Experts that the group cannot share evenly: the first ranks have one more. Otherwise they are refused.
  bool uneven_experts = false;
};

inline constexpr std::string_view kLayerPrefix = "model.layers.";

extern const EngineRules kSglang;
extern const EngineRules kVllm;

}  // namespace lockstep::placement
