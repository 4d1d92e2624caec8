// What a tensor-parallel rank of an engine says of a Qwen3, dense or a mixture: q, k and v fused, gate and up fused,
// experts stacked, the vocabulary padded. For placement_bench and write_batches_bench.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "common/layout/piece.h"
#include "common/layout/strided_copy.h"
#include "common/layout/training_model.h"
#include "common/model/layout.h"
#include "raas_receiver/placement/description/description.h"

namespace lockstep::bench {

class QwenRankMaker {
 public:
  QwenRankMaker(uint32_t rank, uint32_t ranks) : rank_(rank), ranks_(ranks) {
    description_.rank = rank;
    description_.world = ranks;
  }

  placement::RankDescription Make(const model::ModelLayout& layout) {
    for (const model::TensorMeta& tensor : layout.tensors()) Add(tensor);
    uint64_t end = 0;
    for (placement::EngineParameter& parameter : description_.parameters) {
      parameter.strides = layout::ContiguousStrides(parameter.shape);
      parameter.offset = (end + kAlignment - 1) / kAlignment * kAlignment;
      end = parameter.offset + placement::ExtentBytes(parameter);
    }
    description_.memories = {end};
    return std::move(description_);
  }

 private:
  static constexpr uint64_t kAlignment = 256, kVocabularyPadding = 64, kHeadRows = 128;

  // How much of a dimension this rank has.
  struct Share {
    uint64_t first = 0;
    uint64_t size = 0;
  };

  Share Even(uint64_t size) const { return {rank_ * (size / ranks_), size / ranks_}; }
  // More ranks than key/value heads share them.
  Share KeyValue(uint64_t rows) const {
    const uint64_t heads = rows / kHeadRows;
    return ranks_ <= heads ? Even(rows) : Share{rank_ / (ranks_ / heads) * kHeadRows, kHeadRows};
  }

  void Add(const model::TensorMeta& tensor) {
    const auto ends = [&](std::string_view part) { return tensor.name.ends_with(std::string(part) + ".weight"); };
    const uint64_t rows = tensor.shape[0];
    if (ends("embed_tokens") || ends("lm_head")) return Vocabulary(tensor);
    if (ends("q_proj")) return Put(Fused(tensor, "q_proj", "qkv_proj"), tensor, 0, Even(rows));
    if (ends("k_proj")) return Put(Fused(tensor, "k_proj", "qkv_proj"), tensor, 0, KeyValue(rows));
    if (ends("v_proj")) return Put(Fused(tensor, "v_proj", "qkv_proj"), tensor, 0, KeyValue(rows));
    if (ends("gate_proj")) return Put(Fused(tensor, "gate_proj", "gate_up_proj"), tensor, 0, Even(rows));
    if (ends("up_proj")) return Put(Fused(tensor, "up_proj", "gate_up_proj"), tensor, 0, Even(rows), true);
    if (ends("o_proj") || ends("down_proj")) return Put(tensor.name, tensor, 1, Even(tensor.shape[1]));
    Put(tensor.name, tensor, 0, {0, rows});
  }

  static std::string Fused(const model::TensorMeta& tensor, std::string_view part, std::string_view into) {
    std::string name = tensor.name;
    return name.replace(name.rfind(part), part.size(), into);
  }

  placement::EngineParameter& Named(const std::string& name, size_t dimensions) {
    const auto [found, fresh] = by_name_.try_emplace(name, description_.parameters.size());
    if (fresh) description_.parameters.push_back({.name = name, .shape = layout::Extents(dimensions)});
    return description_.parameters[found->second];
  }

  // `share` of dimension `dim` of the tensor; of one that is cut by rows behind the rows that are there, or `second` of
  // two equal parts.
  void Put(std::string name, const model::TensorMeta& tensor, size_t dim, Share share, bool second = false) {
    constexpr std::string_view kExperts = ".experts.";
    const size_t experts = name.find(kExperts);
    const bool stacked = experts != std::string::npos;
    uint64_t expert = 0;
    if (stacked) {
      const size_t number = experts + kExperts.size();
      expert = std::stoull(name.substr(number));
      name.erase(number, name.find('.', number) + 1 - number);
    }
    const size_t leading = stacked ? 1 : 0;
    placement::EngineParameter& parameter = Named(name, tensor.shape.size() + leading);
    placement::Slice slice{tensor.name, layout::Extents(tensor.shape.size()), tensor.shape,
                           layout::Extents(parameter.shape.size())};
    slice.from[dim] = share.first;
    slice.shape[dim] = share.size;
    if (stacked) slice.at[0] = expert;
    if (dim == 0) slice.at[leading] = second ? share.size : (stacked ? 0 : parameter.shape[0]);
    const layout::Extents box = layout::Promoted(slice.shape, parameter.shape.size());
    for (size_t k = 0; k < box.size(); ++k) parameter.shape[k] = std::max(parameter.shape[k], slice.at[k] + box[k]);
    parameter.slices.push_back(std::move(slice));
  }

  void Vocabulary(const model::TensorMeta& tensor) {
    const uint64_t rows = tensor.shape[0];
    const uint64_t own = (rows + kVocabularyPadding - 1) / kVocabularyPadding * kVocabularyPadding / ranks_;
    const uint64_t first = std::min(rows, rank_ * own);
    const uint64_t there = std::min(own, rows - first);
    if (there > 0) Put(tensor.name, tensor, 0, {first, there});
    placement::EngineParameter& parameter = Named(tensor.name, 2);
    parameter.shape = {own, tensor.shape[1]};
    if (there < own) parameter.padding.push_back({{there, 0}, {own - there, tensor.shape[1]}});
  }

  uint32_t rank_;
  uint32_t ranks_;
  placement::RankDescription description_;
  std::unordered_map<std::string, size_t> by_name_;
};

inline placement::RankDescription QwenRank(const model::ModelLayout& layout, uint32_t rank, uint32_t ranks) {
  return QwenRankMaker(rank, ranks).Make(layout);
}

}  // namespace lockstep::bench
