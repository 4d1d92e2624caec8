// What the plans of random trainers do is compared with what the description says, element by element.
#include <catch2/catch.hpp>
#include <set>
#include <tuple>

#include "common/base/status_testing.h"
#include "common/layout/copy_plan.h"
#include "common/layout/layout_testing.h"
#include "common/layout/random_trainer.h"

namespace lockstep::layout {
namespace {

constexpr uint64_t kCases = 1500;
constexpr uint64_t kNothing = ~uint64_t{0};

using Memory = std::vector<uint64_t>;  // one number an element

const Holding& HoldingOf(const TrainingModel& model, uint32_t rank, uint32_t source) {
  const auto holding = std::find_if(model.holdings.begin(), model.holdings.end(),
                                    [&](const Holding& one) { return one.rank == rank && one.source == source; });
  REQUIRE(holding != model.holdings.end());
  return *holding;
}

// The HuggingFace tensors that the description means: element e of source s is s * 1000 + e.
std::vector<Memory> ExpectedTensors(const TrainingModel& model) {
  std::vector<Memory> tensors;
  for (const model::TensorMeta& tensor : model.tensors) tensors.emplace_back(ElementCount(tensor.shape), kNothing);
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
  REQUIRE(RunCopies(copies, std::as_bytes(std::span(from)), std::as_writable_bytes(std::span(to)), /*once=*/true));
}

Extents SeenBy(const TrainingModel& model, const PlanEntry& entry) {
  return Promoted(model.tensors[entry.tensor].shape, model.sources[entry.source].shape.size());
}

template <typename Local>
std::vector<Memory> Exported(const TrainingModel& model, const CopyPlan& plan, Local local) {
  std::vector<Memory> tensors;
  for (const model::TensorMeta& tensor : model.tensors) tensors.emplace_back(ElementCount(tensor.shape), kNothing);
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
    for (const model::TensorMeta& tensor : trainer.model.tensors) bytes += *model::TensorBytes(tensor);
    REQUIRE(plan->bytes == bytes);
  }
}

TEST_CASE("Random trainers: a rank that is not on the agent's host writes only what no rank there has") {
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
    if (!missing.ok()) REQUIRE_THAT(missing, FailsWith(ErrorCode::kBadData, "no rank holds"));

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
    REQUIRE_THAT(overlapping, FailsWith(ErrorCode::kBadData, "both write"));
  }
}

}  // namespace
}  // namespace lockstep::layout
