// Family: one model family as data: which Megatron-core parameters it has, their shapes, how they are sharded, which
// HuggingFace tensors they become, and how its config.json is read.
//
// Tables are constant and live for the whole process.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "export_plugin/rules/model_config.h"

namespace lockstep::rules {

// Where in a model a row applies; it decides the prefixes of its names.
enum class RowScope : uint8_t {
  kModel,     // once, before the layers; names are whole
  kLayer,     // every layer, those inside MTP layers too
  kDense,     // layers with a dense MLP
  kMoe,       // layers with experts
  kExpert,    // every routed expert of a kMoe layer; `{}` in names is its number
  kEnd,       // once, after the decoder's layers; names are whole
  kMtpLayer,  // every MTP layer, outside its inner layer
};

// An extent, as the configuration gives it. Null: no such dimension.
using ModelDim = uint64_t (*)(const ModelConfig& config);

// How tensor parallelism (expert tensor parallelism for kExpert) divides a parameter.
enum class TensorSplit : uint8_t {
  kReplicated,
  kColumn,              // dimension 0
  kColumnOrReplicated,  // which of the two differs among layer specs; the local shape decides
  kRow,                 // dimension 1
  kVocabulary,          // dimension 0, after padding it
  kQkv,                 // dimension 0; query groups [q... k v] become three HuggingFace tensors
  kGlu,                 // dimension 0; each shard is [gate; up]. Two HuggingFace tensors, or one that is [gate; up]
};

// When a model has a row: always, without a test.
struct RowCondition {
  std::string_view what;  // for messages: "only a model with <what> has it"
  bool (*test)(const ModelConfig& config) = nullptr;

  bool Holds(const ModelConfig& config) const { return test == nullptr || test(config); }
};

struct FamilyRow {
  RowScope where;
  // Names within `where`, alternatives apart by '|'. The first is the name with Transformer Engine's layer spec and the
  // source's; the last the one with the local spec.
  std::string_view mcore;
  ModelDim rows;
  ModelDim columns;
  TensorSplit split;
  std::string_view hf;  // names within the HuggingFace layer (whole for kModel and kEnd), one per tensor, apart by '|'
  RowCondition when = {};
  bool with_previous = false;  // engines fuse it with the row before: one bucket
  bool fp32 = false;           // in HuggingFace too, whatever the model's type
};

// A flag of config.json, and what it is where the key is absent. Without a key it is always that.
struct ConfigFlag {
  std::string_view key;
  bool otherwise = false;
};

// How a family's configuration names the decoder layers that have experts.
enum class SparseLayers : uint8_t {
  kNone,
  kEvery,
  kStep,        // decoder_sparse_step, mlp_only_layers
  kFirstDense,  // first_k_dense_replace, moe_layer_freq
};

enum class SharedExperts : uint8_t {
  kNone,
  kOwnSize,  // shared_expert_intermediate_size
  kCount,    // n_shared_experts times moe_intermediate_size
};

struct Family {
  std::string_view model_type;
  std::span<const std::span<const FamilyRow>>
      rows;  // in export order; kExpert rows that follow one another go expert by expert
  ConfigFlag qkv_bias;
  ConfigFlag qk_norm;
  std::string_view refused_flags;  // apart by '|': none may be set, as no row covers what they add
  uint64_t default_head_dim = 0;   // 0: hidden / heads
  bool default_groups = false;     // num_key_value_heads may be absent: one per head
  SparseLayers sparse = SparseLayers::kNone;
  SharedExperts shared = SharedExperts::kNone;
  std::string_view expert_ffn_key;
  bool router_bias = false;
  bool mla = false;
  bool mtp = false;
};

std::span<const Family> Families();
// Null when no table has this model_type.
const Family* FindFamily(std::string_view model_type);

}  // namespace lockstep::rules
