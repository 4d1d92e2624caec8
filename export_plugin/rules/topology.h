// Topology: how Megatron-core lays a model out over ranks: sizes, rank order, which layers a stage holds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace lockstep::rules {

// Sizes are 1 unless set. `world` is a multiple of tensor * context * pipeline and of expert_tensor * expert *
// pipeline.
struct Topology {
  uint32_t world = 1;
  uint32_t tensor = 1;
  uint32_t context = 1;
  uint32_t pipeline = 1;
  uint32_t virtual_pipeline = 1;  // model chunks of each rank
  uint32_t expert = 1;
  uint32_t expert_tensor = 1;       // Megatron's default for it is `tensor`
  uint32_t first_stage_layers = 0;  // num_layers_in_first_pipeline_stage; 0: not given
  uint32_t last_stage_layers = 0;
  bool embedding_in_split = false;         // account_for_embedding_in_pipeline_split
  bool loss_in_split = false;              // account_for_loss_in_pipeline_split
  uint32_t vocabulary_divisible_by = 128;  // make_vocab_size_divisible_by
  std::string pipeline_layout;             // Megatron's layout string ("Et*3|t*4|..."); empty: by the numbers above
};

// A rank's place in a parallel group, and so shard `at` of `of`.
struct GroupPlace {
  uint32_t at = 0;
  uint32_t of = 1;
};

// A rank's places; data parallelism and context are replicas.
struct RankCoordinates {
  GroupPlace tensor;
  GroupPlace expert;
  GroupPlace expert_tensor;
  uint32_t pipeline = 0;
};

// The parts of the model that a rank builds in one model chunk.
struct ModelChunk {
  std::vector<uint32_t> layers;  // global, rising
  bool embedding = false;        // the first stage
  bool output = false;           // the last: the head
  bool final_norm = false;       // with the output, or with the last layer where the model has MTP layers
  bool mtp = false;              // the MTP layers, and a copy of the embedding unless it is the first stage
};

inline constexpr uint32_t kMaxWorld = uint32_t{1} << 20;

// kBadData names what does not divide or contradicts.
Status CheckTopology(const Topology& topology, uint64_t layers);

// With Megatron's default order "tp-cp-ep-dp-pp". REQUIRES CheckTopology, rank < world.
RankCoordinates PlaceOf(const Topology& topology, uint32_t rank);

// The chunks of pipeline stage `stage`, by virtual stage. REQUIRES CheckTopology. kBadData for a pipeline_layout that
// is no layout of these layers.
Result<std::vector<ModelChunk>> ChunksOfStage(const Topology& topology, uint64_t layers, uint64_t mtp_layers,
                                              uint32_t stage);

}  // namespace lockstep::rules
