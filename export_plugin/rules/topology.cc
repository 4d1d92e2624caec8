#include "export_plugin/rules/topology.h"

#include <utility>

#include "common/base/text.h"
#include "export_plugin/rules/pipeline_layout.h"

namespace lockstep::rules {
namespace {

Status Bad(std::string message) {
  return Status(ErrorCode::kBadData, std::move(message));
}

Status CheckSizes(const Topology& topology) {
  const std::pair<const char*, uint32_t> sizes[] = {
      {"world", topology.world},
      {"tensor parallelism", topology.tensor},
      {"context parallelism", topology.context},
      {"pipeline parallelism", topology.pipeline},
      {"virtual pipeline parallelism", topology.virtual_pipeline},
      {"expert parallelism", topology.expert},
      {"expert tensor parallelism", topology.expert_tensor},
      {"vocabulary divisor", topology.vocabulary_divisible_by},
  };
  for (const auto& [name, size] : sizes) {
    if (size < 1 || size > kMaxWorld) return Bad(Cat("topology: ", name, " is ", size, ", not 1 to ", kMaxWorld));
  }
  return OkStatus();
}

Status CheckGrid(const Topology& topology, const char* what, uint32_t first, uint32_t second) {
  const uint64_t ranks = uint64_t{first} * second;  // of one data-parallel replica, per stage
  if (topology.world % topology.pipeline == 0 && topology.world / topology.pipeline % ranks == 0) return OkStatus();
  return Bad(Cat("topology: ", topology.world, " ranks are no multiple of ", what, " (", first, " * ", second, " * ",
                 topology.pipeline, ")"));
}

// Layers of each pipeline rank, before the embedding's and loss's places are taken out.
Result<std::vector<uint64_t>> LayersByRank(const Topology& topology, uint64_t layers) {
  const uint64_t first = topology.first_stage_layers;
  const uint64_t last = topology.last_stage_layers;
  const uint64_t taken = (first > 0) + (last > 0);
  const uint64_t places = layers + topology.embedding_in_split + topology.loss_in_split;
  if (taken > 0 && places != layers) {
    return Bad(
        "topology: layers of the first or last stage cannot be given together with embedding_in_split or "
        "loss_in_split");
  }
  if (taken > 0 && topology.pipeline == 1)
    return Bad("topology: one pipeline stage is first and last; it has all layers");
  const uint64_t middle_ranks = topology.pipeline - taken;
  if (first + last > places || (first + last == places) != (middle_ranks == 0) ||
      (middle_ranks > 0 && (places - first - last) % middle_ranks != 0)) {
    return Bad(Cat("topology: ", places, " layers", places == layers ? "" : " with embedding and loss", " less ", first,
                   " in the first and ", last, " in the last stage do not divide into ", middle_ranks,
                   " other stages"));
  }
  std::vector<uint64_t> by_rank(topology.pipeline, middle_ranks == 0 ? 0 : (places - first - last) / middle_ranks);
  if (first > 0) by_rank.front() = first;
  if (last > 0) by_rank.back() = last;
  return by_rank;
}

// The decoder layers of every chunk, in the model's order: chunk i is virtual stage i / pipeline of rank i % pipeline.
Result<std::vector<uint64_t>> LayersByChunk(const Topology& topology, uint64_t layers) {
  LS_ASSIGN_OR_RETURN(const std::vector<uint64_t> by_rank, LayersByRank(topology, layers));
  if (topology.virtual_pipeline > layers + 2) {
    return Bad(Cat("topology: ", topology.virtual_pipeline, " virtual stages of ", layers, " layers"));
  }
  std::vector<uint64_t> by_chunk;
  for (uint32_t chunk = 0; chunk < topology.virtual_pipeline; ++chunk) {
    for (uint32_t rank = 0; rank < topology.pipeline; ++rank) {
      if (by_rank[rank] % topology.virtual_pipeline != 0) {
        return Bad(Cat("topology: ", by_rank[rank], " layers of pipeline stage ", rank, " do not divide into ",
                       topology.virtual_pipeline, " virtual stages"));
      }
      by_chunk.push_back(by_rank[rank] / topology.virtual_pipeline);
    }
  }
  if (by_chunk.front() < topology.embedding_in_split) return Bad("topology: no layer's place for the embedding");
  by_chunk.front() -= topology.embedding_in_split;
  if (by_chunk.back() < topology.loss_in_split) return Bad("topology: no layer's place for the loss");
  by_chunk.back() -= topology.loss_in_split;
  return by_chunk;
}

Status CheckLayout(const Topology& topology, const std::vector<LayoutStage>& stages, uint64_t layers) {
  if (topology.first_stage_layers + topology.last_stage_layers > 0 || topology.embedding_in_split ||
      topology.loss_in_split) {
    return Bad("topology: a pipeline layout leaves no room for other rules of the split");
  }
  if (topology.virtual_pipeline != 1 && stages.size() != uint64_t{topology.virtual_pipeline} * topology.pipeline) {
    return Bad(Cat("topology: the pipeline layout has ", stages.size(), " stages, not ", topology.pipeline, " * ",
                   topology.virtual_pipeline));
  }
  uint64_t count = 0;
  for (const LayoutStage& stage : stages) count += stage.layers;
  if (count == layers) return OkStatus();
  return Bad(Cat("topology: the pipeline layout has ", count, " decoder layers, the model ", layers));
}

// All chunks in the model's order, without layer numbers.
struct ChunkSplit {
  std::vector<uint64_t> layers;
  size_t mtp_chunk = 0;
};

Result<ChunkSplit> SplitOf(const Topology& topology, uint64_t layers, uint64_t mtp_layers) {
  if (topology.pipeline_layout.empty()) {
    LS_ASSIGN_OR_RETURN(std::vector<uint64_t> by_chunk, LayersByChunk(topology, layers));
    return ChunkSplit{.layers = by_chunk, .mtp_chunk = by_chunk.size() - 1};
  }
  LS_ASSIGN_OR_RETURN(const auto stages, ParsePipelineLayout(topology.pipeline_layout, topology.pipeline));
  LS_RETURN_IF_ERROR(CheckLayout(topology, stages, layers));
  ChunkSplit split;
  uint64_t mtp = 0;
  for (const LayoutStage& stage : stages) {
    if (stage.mtp_layers > 0) split.mtp_chunk = split.layers.size();
    mtp += stage.mtp_layers;
    split.layers.push_back(stage.layers);
  }
  if (mtp == mtp_layers) return split;
  return Bad(Cat("topology: the pipeline layout has ", mtp, " MTP layers, the model ", mtp_layers));
}

}  // namespace

Status CheckTopology(const Topology& topology, uint64_t layers) {
  LS_RETURN_IF_ERROR(CheckSizes(topology));
  LS_RETURN_IF_ERROR(CheckGrid(topology, "tensor * context * pipeline parallelism", topology.tensor, topology.context));
  LS_RETURN_IF_ERROR(
      CheckGrid(topology, "expert tensor * expert * pipeline parallelism", topology.expert_tensor, topology.expert));
  if (topology.virtual_pipeline > 1 && topology.pipeline == 1) {
    return Bad("topology: virtual pipeline stages need more than one pipeline rank");
  }
  if (topology.pipeline_layout.empty()) return ToStatus(LayersByChunk(topology, layers));
  LS_ASSIGN_OR_RETURN(const auto stages, ParsePipelineLayout(topology.pipeline_layout, topology.pipeline));
  return CheckLayout(topology, stages, layers);
}

RankCoordinates PlaceOf(const Topology& topology, uint32_t rank) {
  return {.tensor = {rank % topology.tensor, topology.tensor},
          .expert = {rank / topology.expert_tensor % topology.expert, topology.expert},
          .expert_tensor = {rank % topology.expert_tensor, topology.expert_tensor},
          .pipeline = rank / (topology.world / topology.pipeline)};
}

Result<std::vector<ModelChunk>> ChunksOfStage(const Topology& topology, uint64_t layers, uint64_t mtp_layers,
                                              uint32_t stage) {
  LS_ASSIGN_OR_RETURN(const ChunkSplit split, SplitOf(topology, layers, mtp_layers));
  std::vector<ModelChunk> chunks;
  uint64_t next = 0;
  for (size_t i = 0; i < split.layers.size(); next += split.layers[i++]) {
    if (i % topology.pipeline != stage) continue;
    ModelChunk chunk{.embedding = i == 0, .output = i + 1 == split.layers.size()};
    for (uint64_t layer = next; layer < next + split.layers[i]; ++layer) {
      chunk.layers.push_back(static_cast<uint32_t>(layer));
    }
    chunk.mtp = mtp_layers > 0 && i == split.mtp_chunk;
    chunk.final_norm = mtp_layers > 0 ? !chunk.layers.empty() && chunk.layers.back() + 1 == layers : chunk.output;
    chunks.push_back(std::move(chunk));
  }
  return chunks;
}

}  // namespace lockstep::rules
