// Random trainers: random training tensors, conversions, shards, replicas, copies and hosts.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/layout/layout_testing.h"
#include "common/layout/training_model.h"

namespace lockstep::layout {

struct Trainer {
  TrainingModel model;
  std::vector<bool> beside;
  std::vector<uint64_t> shard;  // of each holding: which shard of its source
};

class TrainerMaker {
 public:
  explicit TrainerMaker(Random& random) : random_(random) {
    trainer_.beside.resize(random.Between(1, 8));
    for (size_t rank = 0; rank < trainer_.beside.size(); ++rank) trainer_.beside[rank] = random.OneIn(2);
    trainer_.beside[random.Between(0, trainer_.beside.size() - 1)] = true;
  }

  Trainer Make() {
    for (uint64_t count = random_.Between(1, 6); count > 0; --count) {
      switch (random_.Between(0, 4)) {
        case 0:
          Plain();
          break;
        case 1:
          Fused();
          break;
        case 2:
          Padded();
          break;
        case 3:
          Joined();
          break;
        default:
          Stacked();
      }
    }
    if (random_.OneIn(4)) Tensor({0, 3});
    for (uint32_t source = 0; source < model().sources.size(); ++source) Distribute(source);
    return std::move(trainer_);
  }

 private:
  TrainingModel& model() { return trainer_.model; }

  uint32_t Tensor(const Extents& shape) {
    const model::DType dtype = random_.OneIn(2) ? model::DType::kBF16 : model::DType::kF32;
    model().tensors.push_back({.name = "t" + std::to_string(model().tensors.size()), .dtype = dtype, .shape = shape});
    model().groups.push_back(0);
    return static_cast<uint32_t>(model().tensors.size() - 1);
  }

  uint32_t Source(const Extents& shape) {
    model().sources.push_back(
        {.name = "s" + std::to_string(random_.Between(0, 9)) + "." + std::to_string(model().sources.size()),
         .shape = shape});
    return static_cast<uint32_t>(model().sources.size() - 1);
  }

  void Plain() {
    const Extents shape = random_.Shape(random_.Between(0, 3), 6);
    const uint32_t tensor = Tensor(shape);
    model().conversions.push_back({Source(shape), tensor, Shattered(random_, Whole(shape))});
  }

  // Groups of rows that go, in turn, to several tensors.
  void Fused() {
    const uint64_t groups = random_.Between(1, 3);
    const uint64_t columns = random_.Between(1, 4);
    const Extents rows = random_.Shape(random_.Between(1, 3), 3);
    uint64_t group_rows = 0;
    for (const uint64_t count : rows) group_rows += count;
    const uint32_t source = Source({groups * group_rows, columns});
    uint64_t from = 0;
    for (const uint64_t count : rows) {
      Pieces pieces;
      for (uint64_t group = 0; group < groups; ++group) {
        pieces.push_back({{group * group_rows + from, 0}, {group * count, 0}, {count, columns}});
      }
      model().conversions.push_back({source, Tensor({groups * count, columns}), pieces});
      from += count;
    }
  }

  // One tensor of several sources.
  void Joined() {
    const Extents shape = random_.Shape(2, 6);
    const uint32_t tensor = Tensor(shape);
    for (const Piece& box : RandomTiling(random_, shape)) {
      model().conversions.push_back({Source(box.size), tensor, Box({0, 0}, box.target, box.size)});
    }
  }

  void Padded() {
    const Extents shape = random_.Shape(2, 5);
    const uint32_t source = Source({shape[0] + random_.Between(1, 4), shape[1]});
    model().conversions.push_back({source, Tensor(shape), Whole(shape)});
  }

  void Stacked() {
    const Extents shape = random_.Shape(3, 4);
    const uint32_t source = Source(shape);
    for (uint64_t i = 0; i < shape[0]; ++i) {
      const uint32_t tensor = Tensor({shape[1], shape[2]});
      model().conversions.push_back({source, tensor, Box({i, 0, 0}, {0, 0, 0}, {1, shape[1], shape[2]})});
    }
  }

  // Cuts a source as tensor parallelism, as uneven rows, or in any other way, into at most `most` shards.
  std::vector<Pieces> Shards(const Extents& shape, uint64_t most) {
    const size_t dim = shape.empty() ? 0 : random_.Between(0, shape.size() - 1);
    std::vector<Pieces> shards;
    if (!shape.empty() && random_.OneIn(2)) {
      const uint64_t chunk = (shape[dim] + most - 1) / most;  // as torch.chunk
      for (uint64_t start = 0; start < shape[dim]; start += chunk) {
        Piece box{Extents(shape.size()), Extents(shape.size()), shape};
        box.target[dim] = start;
        box.size[dim] = std::min(chunk, shape[dim] - start);
        shards.push_back({box});
      }
      return shards;
    }
    shards.resize(random_.Between(1, most));
    for (Piece& box : RandomTiling(random_, shape)) shards[random_.Between(0, shards.size() - 1)].push_back(box);
    return shards;
  }

  // A shard's boxes below one another in a local tensor with room to spare.
  Holding Held(uint32_t rank, uint32_t source, const Pieces& boxes) {
    Holding holding{.rank = rank, .source = source, .local_shape = model().sources[source].shape};
    if (holding.local_shape.empty()) {
      holding.pieces = boxes;
      return holding;
    }
    holding.local_shape[0] = random_.Between(0, 1);
    for (Piece piece : boxes) {
      piece.source = Extents(piece.target.size());
      piece.source[0] = holding.local_shape[0];
      holding.local_shape[0] += piece.size[0];
      holding.pieces.push_back(std::move(piece));
    }
    random_.Shuffle(holding.pieces);
    return holding;
  }

  void Distribute(uint32_t source) {
    std::vector<uint32_t> ranks(trainer_.beside.size());
    for (uint32_t rank = 0; rank < ranks.size(); ++rank) ranks[rank] = rank;
    random_.Shuffle(ranks);
    const std::vector<Pieces> shards = Shards(model().sources[source].shape, ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (i >= shards.size() && random_.OneIn(3)) continue;
      const size_t shard = i < shards.size() ? i : random_.Between(0, shards.size() - 1);
      Holding holding = Held(ranks[i], source, shards[shard]);
      holding.copy = i >= shards.size() && random_.OneIn(4);
      model().holdings.push_back(std::move(holding));
      trainer_.shard.push_back(shard);
    }
  }

  Random& random_;
  Trainer trainer_;
};

}  // namespace lockstep::layout
