// For tests of placement: random models, and random engines that take them fused, sliced, replicated, padded, strided,
// widened.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "common/layout/layout_testing.h"
#include "common/layout/training_model.h"
#include "common/model/layout.h"
#include "raas_receiver/engine/placement/description/description.h"

namespace lockstep::engine {

struct TestEngine {
  std::shared_ptr<const model::ModelLayout> layout;
  std::vector<RankDescription> ranks;
  std::vector<std::string> unused;
};

class RandomEngineMaker {
 public:
  explicit RandomEngineMaker(layout::Random& random) : random_(random) {}

  TestEngine Make() {
    std::vector<model::TensorMeta> tensors;
    for (uint64_t i = random_.Between(1, 6); i > 0; --i) tensors.push_back(Tensor(tensors.size()));
    if (random_.OneIn(4)) tensors.push_back({.name = "empty", .dtype = model::DType::kBF16, .shape = {0, 3}});
    (void)model::AssignOffsets(tensors);
    engine_.layout = *model::ModelLayout::Create(tensors);
    engine_.ranks.resize(random_.Between(1, 4));
    for (uint32_t i = 0; i < engine_.ranks.size(); ++i) Rank(i);
    const size_t most = engine_.layout->tensors().size() - 1;
    for (size_t i = 0; i < engine_.layout->tensors().size(); ++i) {
      const model::TensorMeta& tensor = engine_.layout->tensors()[i];
      if (random_.OneIn(8) && engine_.unused.size() < most) {
        engine_.unused.push_back(tensor.name);
      } else {
        Deal(tensor);
      }
    }
    for (size_t i = 0; i < engine_.ranks.size(); ++i) Finish(engine_.ranks[i], boxes_[i]);
    return std::move(engine_);
  }

 private:
  model::TensorMeta Tensor(size_t number) {
    static constexpr model::DType kTypes[] = {model::DType::kBF16, model::DType::kBF16, model::DType::kF32,
                                              model::DType::kU8, model::DType::kF64};
    return {.name = "t" + std::to_string(number),
            .dtype = kTypes[random_.Between(0, 4)],
            .shape = random_.Shape(random_.Between(0, 4), 5)};
  }

  void Rank(uint32_t number) {
    RankDescription& rank = engine_.ranks[number];
    rank.rank = number;
    rank.world = static_cast<uint32_t>(engine_.ranks.size());
    rank.memories.resize(random_.Between(1, 3));
    boxes_.emplace_back();
  }

  struct Part {
    model::DType dtype;
    Slice slice;
  };

  // Cuts `tensor` and gives every part to one rank, to some, or to all.
  void Deal(const model::TensorMeta& tensor) {
    layout::Pieces parts;
    switch (random_.Between(0, 2)) {
      case 0:
        parts = layout::Whole(tensor.shape);
        break;
      case 1:
        parts = Shards(tensor.shape);
        break;
      default:
        parts = layout::RandomTiling(random_, tensor.shape);
    }
    const bool replicated = random_.OneIn(3);
    for (const layout::Piece& part : parts) {
      const size_t owner = random_.Between(0, boxes_.size() - 1);
      for (size_t rank = 0; rank < boxes_.size(); ++rank) {
        if (rank != owner && !replicated && !random_.OneIn(6)) continue;
        boxes_[rank].push_back({tensor.dtype, {tensor.name, part.source, part.size, {}}});
      }
    }
  }

  layout::Pieces Shards(const layout::Extents& shape) {
    if (shape.empty()) return layout::Whole(shape);
    const size_t dim = random_.Between(0, shape.size() - 1);
    const uint64_t count = shape[dim] % 2 == 0 ? 2 : 1;
    layout::Pieces shards;
    for (uint64_t i = 0; i < count && layout::ElementCount(shape) > 0; ++i) {
      const layout::Piece shard = layout::ShardOf(shape, dim, i, count)[0];
      shards.push_back({shard.target, shard.target, shard.size});
    }
    return shards;
  }

  void Finish(RankDescription& rank, std::vector<Part>& parts) {
    random_.Shuffle(parts);
    while (!parts.empty()) Parameter(rank, parts);
    if (!rank.parameters.empty() && random_.OneIn(3)) {  // tied
      rank.parameters.push_back(rank.parameters[random_.Between(0, rank.parameters.size() - 1)]);
      rank.parameters.back().name = "tied";
      random_.Shuffle(rank.parameters.back().slices);
    }
    random_.Shuffle(rank.parameters);
    for (uint64_t& bytes : rank.memories) bytes += random_.Between(1, 9);
  }

  // A parameter of the last of `parts`, and of as many others as fit.
  void Parameter(RankDescription& rank, std::vector<Part>& parts) {
    const Part first = parts.back();
    EngineParameter parameter{.name = "p" + std::to_string(rank.parameters.size()), .dtype = first.dtype};
    if (IsWidened(first.dtype, model::DType::kF32) && random_.OneIn(4)) parameter.dtype = model::DType::kF32;
    parameter.shape = layout::Promoted(first.slice.shape, first.slice.shape.size() + random_.Between(0, 1));
    if (random_.OneIn(2)) {
      for (uint64_t& size : parameter.shape) size += random_.OneIn(2) ? random_.Between(0, 4) : 0;
    }
    std::vector<bool> taken(layout::ElementCount(parameter.shape));
    for (size_t i = parts.size(); i-- > 0;) {
      if (i + 1 < parts.size() && random_.OneIn(3)) continue;
      if (!Fit(parts[i], parameter, taken)) continue;
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i));
    }
    Pad(parameter, taken);
    Place(rank, parameter);
    rank.parameters.push_back(std::move(parameter));
  }

  bool Fit(const Part& part, EngineParameter& parameter, std::vector<bool>& taken) {
    const size_t rank = parameter.shape.size();
    if (part.dtype != parameter.dtype && !IsWidened(part.dtype, parameter.dtype)) return false;
    if (part.slice.shape.size() > rank) return false;
    const layout::Extents size = layout::Promoted(part.slice.shape, rank);
    layout::Extents range(rank);
    for (size_t k = 0; k < rank; ++k) {
      if (size[k] > parameter.shape[k]) return false;
      range[k] = parameter.shape[k] - size[k] + 1;
    }
    bool fits = false;
    Slice slice = part.slice;
    layout::ForEachIndex(range, [&](const layout::Extents& at) {
      if (fits || !IsFree(parameter.shape, at, size, taken)) return;
      fits = true;
      slice.at = at;
    });
    if (!fits) return false;
    layout::ForEachIndex(
        size, [&](const layout::Extents& index) { taken[layout::FlatIndex(parameter.shape, slice.at, index)] = true; });
    parameter.slices.push_back(std::move(slice));
    return true;
  }

  static bool IsFree(const layout::Extents& shape, const layout::Extents& at, const layout::Extents& size,
                     const std::vector<bool>& taken) {
    bool free = true;
    layout::ForEachIndex(
        size, [&](const layout::Extents& index) { free = free && !taken[layout::FlatIndex(shape, at, index)]; });
    return free;
  }

  void Pad(EngineParameter& parameter, const std::vector<bool>& taken) {
    const layout::Extents& shape = parameter.shape;
    layout::ForEachIndex(shape, [&](const layout::Extents& at) {
      if (!taken[layout::FlatIndex(shape, layout::Extents(shape.size()), at)]) {
        parameter.padding.push_back({at, layout::Extents(shape.size(), 1)});
      }
    });
  }

  // Strides in any order, with gaps at times; behind all others of a memory.
  void Place(RankDescription& rank, EngineParameter& parameter) {
    const size_t dims = parameter.shape.size();
    std::vector<size_t> order(dims);
    std::iota(order.begin(), order.end(), 0);
    if (random_.OneIn(3)) random_.Shuffle(order);
    parameter.strides.resize(dims);
    uint64_t stride = random_.OneIn(6) ? 2 : 1;
    for (size_t i = dims; i-- > 0;) {
      parameter.strides[order[i]] = parameter.shape[order[i]] == 1 && random_.OneIn(4) ? 7 : stride;
      stride *= parameter.shape[order[i]];
      if (random_.OneIn(6)) stride += random_.Between(1, 3);
    }
    parameter.memory = static_cast<uint32_t>(random_.Between(0, rank.memories.size() - 1));
    uint64_t& bytes = rank.memories[parameter.memory];
    parameter.offset = bytes + (random_.OneIn(2) ? random_.Between(0, 5) : 0);
    uint64_t last = 0;
    for (size_t k = 0; k < dims; ++k) last += (parameter.shape[k] - 1) * parameter.strides[k];
    const uint64_t elements = layout::ElementCount(parameter.shape) == 0 ? 0 : last + 1;
    bytes = parameter.offset + elements * model::FindDType(parameter.dtype)->bits / 8;
  }

  layout::Random& random_;
  TestEngine engine_;
  std::vector<std::vector<Part>> boxes_;  // by rank
};

}  // namespace lockstep::engine
