// Random trainers: random training tensors, conversions, shards, replicas, copies and hosts. What their plans do is
// compared with what the description says, element by element.
#include <catch2/catch.hpp>
#include <set>
#include <tuple>

#include "common/layout/copy_plan.h"
#include "common/layout/layout_testing.h"
#include "common/layout/strided_copy.h"

namespace lockstep {
namespace {

constexpr uint64_t kCases = 1500;
constexpr uint64_t kNothing = ~uint64_t{0};

using Memory = std::vector<uint64_t>;  // one number an element

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
    const DType dtype = random_.OneIn(2) ? DType::kBF16 : DType::kF32;
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

const Holding& HoldingOf(const TrainingModel& model, uint32_t rank, uint32_t source) {
  const auto holding = std::find_if(model.holdings.begin(), model.holdings.end(),
                                    [&](const Holding& one) { return one.rank == rank && one.source == source; });
  REQUIRE(holding != model.holdings.end());
  return *holding;
}

// The HuggingFace tensors that the description means: element e of source s is s * 1000 + e.
std::vector<Memory> ExpectedTensors(const TrainingModel& model) {
  std::vector<Memory> tensors;
  for (const TensorMeta& tensor : model.tensors) tensors.emplace_back(ElementCount(tensor.shape), kNothing);
  for (const Conversion& conversion : model.conversions) {
    const Extents& shape = model.sources[conversion.source].shape;
    const Extents target = Promoted(model.tensors[conversion.tensor].shape, shape.size());
    const std::vector<uint64_t> map = ElementMap(conversion.pieces, shape, target);
    for (size_t i = 0; i < map.size(); ++i) {
      if (map[i] != kNoElement) tensors[conversion.tensor][i] = conversion.source * 1000 + map[i];
    }
  }
  return tensors;
}

Memory LocalMemory(const TrainingModel& model, const Holding& holding) {
  Memory memory(ElementCount(holding.local_shape), kNothing);
  const std::vector<uint64_t> map =
      ElementMap(Inverse(holding.pieces), model.sources[holding.source].shape, holding.local_shape);
  for (size_t i = 0; i < map.size(); ++i) {
    if (map[i] != kNoElement) memory[i] = holding.source * 1000 + map[i];
  }
  return memory;
}

// Runs `pieces` as lowered copies of 8-byte elements; every element is written at most once.
void Move(const Pieces& pieces, const Extents& from_shape, const Memory& from, const Extents& to_shape, Memory& to) {
  std::vector<StridedCopy> copies;
  AppendCopies(pieces, TensorView::Contiguous(from_shape, 8, 0), TensorView::Contiguous(to_shape, 8, 0), copies);
  for (const StridedCopy& copy : copies) {
    for (uint64_t row = 0; row < copy.rows; ++row) {
      for (uint64_t i = 0; i < copy.row_bytes; i += 8) {
        uint64_t& element = to[(copy.target_offset + row * copy.target_pitch + i) / 8];
        REQUIRE(element == kNothing);
        element = from[(copy.source_offset + row * copy.source_pitch + i) / 8];
      }
    }
  }
}

Extents SeenBy(const TrainingModel& model, const PlanEntry& entry) {
  return Promoted(model.tensors[entry.tensor].shape, model.sources[entry.source].shape.size());
}

template <typename Local>
std::vector<Memory> Exported(const TrainingModel& model, const CopyPlan& plan, Local local) {
  std::vector<Memory> tensors;
  for (const TensorMeta& tensor : model.tensors) tensors.emplace_back(ElementCount(tensor.shape), kNothing);
  for (uint32_t rank = 0; rank < plan.ranks.size(); ++rank) {
    for (const PlanEntry& entry : plan.ranks[rank].entries) {
      const Holding& holding = HoldingOf(model, rank, entry.source);
      REQUIRE_FALSE(holding.copy);
      Move(entry.pieces, holding.local_shape, local(holding), SeenBy(model, entry), tensors[entry.tensor]);
    }
  }
  return tensors;
}

// The same trainer with everything but its tensors in another order.
Trainer Reordered(Random& random, const Trainer& trainer) {
  Trainer other = trainer;
  std::vector<uint32_t> order(trainer.model.sources.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  random.Shuffle(order);
  for (uint32_t i = 0; i < order.size(); ++i) other.model.sources[order[i]] = trainer.model.sources[i];
  for (Conversion& conversion : other.model.conversions) {
    conversion.source = order[conversion.source];
    random.Shuffle(conversion.pieces);
  }
  for (Holding& holding : other.model.holdings) {
    holding.source = order[holding.source];
    random.Shuffle(holding.pieces);
  }
  random.Shuffle(other.model.conversions);
  random.Shuffle(other.model.holdings);
  return other;
}

using NamedEntry = std::tuple<uint32_t, uint32_t, std::string, Pieces>;

std::vector<NamedEntry> Named(const TrainingModel& model, const CopyPlan& plan) {
  std::vector<NamedEntry> named;
  for (uint32_t rank = 0; rank < plan.ranks.size(); ++rank) {
    for (const PlanEntry& entry : plan.ranks[rank].entries) {
      named.emplace_back(rank, entry.tensor, model.sources[entry.source].name, entry.pieces);
    }
  }
  return named;
}

TEST_CASE("Random trainers: running all ranks' copies writes every element of every tensor once, rightly") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const Trainer trainer = TrainerMaker(random).Make();
    const auto plan = CompileExport(trainer.model, trainer.beside);
    REQUIRE(plan.status().message().empty());
    const auto exported =
        Exported(trainer.model, *plan, [&](const Holding& holding) { return LocalMemory(trainer.model, holding); });
    REQUIRE(exported == ExpectedTensors(trainer.model));
    uint64_t bytes = 0;
    for (const TensorMeta& tensor : trainer.model.tensors) bytes += *TensorBytes(tensor);
    REQUIRE(plan->bytes == bytes);
  }
}

TEST_CASE("Random trainers: who is not beside the agent writes only what nobody beside it has") {
  uint64_t remote = 0;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const Trainer trainer = TrainerMaker(random).Make();
    const auto plan = CompileExport(trainer.model, trainer.beside);
    REQUIRE(plan.ok());
    std::set<std::pair<uint32_t, uint64_t>> near;  // (source, shard)
    for (size_t i = 0; i < trainer.shard.size(); ++i) {
      const Holding& holding = trainer.model.holdings[i];
      if (!holding.copy && trainer.beside[holding.rank]) near.emplace(holding.source, trainer.shard[i]);
    }
    for (size_t i = 0; i < trainer.shard.size(); ++i) {
      const Holding& holding = trainer.model.holdings[i];
      if (trainer.beside[holding.rank] || near.count({holding.source, trainer.shard[i]}) == 0) continue;
      for (const PlanEntry& entry : plan->ranks[holding.rank].entries) REQUIRE(entry.source != holding.source);
    }
    for (size_t rank = 0; rank < trainer.beside.size(); ++rank) {
      if (!trainer.beside[rank]) remote += plan->ranks[rank].entries.size();
    }
  }
  CHECK(remote > 0);
}

TEST_CASE("Random trainers: the plan does not depend on the order of the description") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const Trainer trainer = TrainerMaker(random).Make();
    const Trainer other = Reordered(random, trainer);
    const auto plan = CompileExport(trainer.model, trainer.beside);
    const auto again = CompileExport(other.model, other.beside);
    REQUIRE((plan.ok() && again.ok()));
    REQUIRE(plan->digest == again->digest);
    REQUIRE(Named(trainer.model, *plan) == Named(other.model, *again));
  }
}

TEST_CASE("Random trainers: exporting what was imported is the identity") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const Trainer trainer = TrainerMaker(random).Make();
    const TrainingModel& model = trainer.model;
    std::vector<Memory> checkpoint;
    for (uint64_t i = 0; i < model.tensors.size(); ++i) {
      checkpoint.emplace_back(ElementCount(model.tensors[i].shape));
      for (uint64_t e = 0; e < checkpoint[i].size(); ++e) checkpoint[i][e] = 1'000'000 + i * 1000 + e;
    }
    const auto imported = [&](const Holding& holding) {
      Memory memory(ElementCount(holding.local_shape), kNothing);
      const auto plan = CompileImport(model, holding.rank);
      REQUIRE(plan.ok());
      for (const PlanEntry& entry : plan->entries) {
        if (entry.source != holding.source) continue;
        Move(Inverse(entry.pieces), SeenBy(model, entry), checkpoint[entry.tensor], holding.local_shape, memory);
      }
      return memory;
    };
    const auto plan = CompileExport(model, trainer.beside);
    REQUIRE(plan.ok());
    REQUIRE(Exported(model, *plan, imported) == checkpoint);
    // Every replica and copy has got what is its part of each source, and nothing where the checkpoint has nothing.
    std::vector<Memory> sources;
    for (const SourceTensor& source : model.sources) sources.emplace_back(ElementCount(source.shape), kNothing);
    for (const Conversion& conversion : model.conversions) {
      const Extents& shape = model.sources[conversion.source].shape;
      Move(Inverse(conversion.pieces), Promoted(model.tensors[conversion.tensor].shape, shape.size()),
           checkpoint[conversion.tensor], shape, sources[conversion.source]);
    }
    for (const Holding& holding : model.holdings) {
      Memory expected(ElementCount(holding.local_shape), kNothing);
      Move(Inverse(holding.pieces), model.sources[holding.source].shape, sources[holding.source], holding.local_shape,
           expected);
      REQUIRE(imported(holding) == expected);
    }
  }
}

TEST_CASE("Random trainers: without all replicas of a shard, or with one replica cut differently, there is no plan") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const Trainer trainer = TrainerMaker(random).Make();
    const auto plan = CompileExport(trainer.model, trainer.beside);
    REQUIRE(plan.ok());
    if (trainer.model.holdings.empty()) continue;
    const size_t victim = random.Between(0, trainer.model.holdings.size() - 1);
    const uint32_t source = trainer.model.holdings[victim].source;
    const auto same = [&](size_t i) {
      const Holding& holding = trainer.model.holdings[i];
      return holding.source == source && trainer.shard[i] == trainer.shard[victim] && !holding.copy;
    };
    uint64_t feeding = 0;
    uint64_t replicas = 0;
    for (size_t i = 0; i < trainer.shard.size(); ++i) {
      if (!same(i)) continue;
      ++replicas;
      for (const PlanEntry& entry : plan->ranks[trainer.model.holdings[i].rank].entries) {
        feeding += entry.source == source ? ElementCount(entry.pieces) : 0;
      }
    }
    TrainingModel without = trainer.model;
    for (size_t i = 0; i < trainer.shard.size(); ++i) {
      if (same(i)) without.holdings[i].pieces.clear();
    }
    const auto missing = CompileExport(without, trainer.beside);
    REQUIRE(missing.ok() == (feeding == 0));
    if (!missing.ok()) REQUIRE_THAT(missing.status().message(), Catch::Contains("nobody holds"));

    if (replicas < 2 || feeding != ElementCount(trainer.model.holdings[victim].pieces) || feeding < 2) continue;
    TrainingModel cut = trainer.model;
    Pieces& pieces = cut.holdings[victim].pieces;
    if (cut.holdings[victim].copy) continue;
    const auto larger =
        std::find_if(pieces.begin(), pieces.end(), [](const Piece& piece) { return ElementCount(piece.size) > 1; });
    if (larger == pieces.end()) {
      pieces.pop_back();
    } else {
      --*std::find_if(larger->size.begin(), larger->size.end(), [](uint64_t size) { return size > 1; });
    }
    const auto overlapping = CompileExport(cut, trainer.beside);
    REQUIRE_THAT(overlapping.status().message(), Catch::Contains("both write"));
  }
}

}  // namespace
}  // namespace lockstep
