#include "common/layout/copy_plan.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>

#include "common/base/text.h"

namespace lockstep::layout {
namespace {

// Positions 0 .. count - 1 in the order that `less` gives them.
template <typename Less>
std::vector<uint32_t> Sorted(size_t count, Less less) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), less);
  return order;
}

// By the elements of the target alone: where they lie in the source makes no other shard of them.
bool CoverageLess(const Pieces& a, const Pieces& b) {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(), [](const Piece& x, const Piece& y) {
    return std::tie(x.target, x.size) < std::tie(y.target, y.size);
  });
}

bool PiecesLess(const Pieces& a, const Pieces& b) {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(), [](const Piece& x, const Piece& y) {
    return std::tie(x.target, x.size, x.source) < std::tie(y.target, y.size, y.source);
  });
}

// A TrainingModel's conversions and holdings by source, in an order of their own content.
class BySource {
 public:
  explicit BySource(const TrainingModel& model)
      : model_(model),
        conversions_(Sorted(model.conversions.size(), [&](uint32_t a, uint32_t b) { return ConversionLess(a, b); })),
        holdings_(Sorted(model.holdings.size(), [&](uint32_t a, uint32_t b) { return HoldingLess(a, b); })),
        first_conversion_(Begins(model.conversions, conversions_)),
        first_holding_(Begins(model.holdings, holdings_)) {}

  std::span<const uint32_t> conversions(size_t source) const { return Of(conversions_, first_conversion_, source); }
  std::span<const uint32_t> holdings(size_t source) const { return Of(holdings_, first_holding_, source); }

  // Sources that feed something, in the order of the first tensor that they feed.
  std::vector<uint32_t> FeedingOrder() const {
    std::vector<uint32_t> order;
    for (uint32_t source = 0; source < model_.sources.size(); ++source) {
      if (!conversions(source).empty()) order.push_back(source);
    }
    const auto first_tensor = [&](uint32_t source) { return model_.conversions[conversions(source)[0]].tensor; };
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      if (first_tensor(a) != first_tensor(b)) return first_tensor(a) < first_tensor(b);
      return model_.sources[a].name < model_.sources[b].name;
    });
    return order;
  }

  // What a plan's entries name is (rank, source): all that a rank holds of a source must be interchangeable.
  Status CheckEqualCopies() const {
    for (size_t i = 1; i < holdings_.size(); ++i) {
      const Holding& a = model_.holdings[holdings_[i - 1]];
      const Holding& b = model_.holdings[holdings_[i]];
      if (a.source != b.source || a.rank != b.rank) continue;
      if (a.local_shape == b.local_shape && a.pieces == b.pieces) continue;
      return {ErrorCode::kBadData, Cat("rank ", a.rank, " holds training tensor \"", model_.sources[a.source].name,
                                       "\" twice, as tensors of shapes ", ShapeText(a.local_shape), " and ",
                                       ShapeText(b.local_shape), " that are no copies of one another")};
    }
    return OkStatus();
  }

 private:
  bool ConversionLess(uint32_t a, uint32_t b) const {
    const Conversion& x = model_.conversions[a];
    const Conversion& y = model_.conversions[b];
    if (x.source != y.source) return x.source < y.source;
    if (x.tensor != y.tensor) return x.tensor < y.tensor;
    return PiecesLess(x.pieces, y.pieces);
  }

  bool HoldingLess(uint32_t a, uint32_t b) const {
    const Holding& x = model_.holdings[a];
    const Holding& y = model_.holdings[b];
    return std::tie(x.source, x.rank, x.copy) < std::tie(y.source, y.rank, y.copy);
  }

  template <typename T>
  std::vector<size_t> Begins(const std::vector<T>& items, const std::vector<uint32_t>& order) const {
    std::vector<size_t> begins(model_.sources.size() + 1);
    for (const uint32_t i : order) ++begins[items[i].source + 1];
    std::partial_sum(begins.begin(), begins.end(), begins.begin());
    return begins;
  }

  static std::span<const uint32_t> Of(const std::vector<uint32_t>& order, const std::vector<size_t>& begins,
                                      size_t source) {
    return std::span(order).subspan(begins[source], begins[source + 1] - begins[source]);
  }

  const TrainingModel& model_;
  std::vector<uint32_t> conversions_;
  std::vector<uint32_t> holdings_;
  std::vector<size_t> first_conversion_;
  std::vector<size_t> first_holding_;
};

// Adds what `holding` gives to the tensors made of its source.
void AddEntries(const TrainingModel& model, const BySource& index, const Holding& holding, RankPlan& plan) {
  for (const uint32_t i : index.conversions(holding.source)) {
    const Conversion& conversion = model.conversions[i];
    Pieces pieces = Normalize(Compose(holding.pieces, conversion.pieces));
    if (pieces.empty()) continue;
    plan.bytes += ElementCount(pieces) * model::FindDType(model.tensors[conversion.tensor].dtype)->bits / 8;
    plan.entries.push_back({holding.source, conversion.tensor, std::move(pieces)});
  }
}

void SortEntries(const TrainingModel& model, RankPlan& plan) {
  std::sort(plan.entries.begin(), plan.entries.end(), [&](const PlanEntry& a, const PlanEntry& b) {
    if (a.tensor != b.tensor) return a.tensor < b.tensor;
    if (a.source != b.source) return model.sources[a.source].name < model.sources[b.source].name;
    return PiecesLess(a.pieces, b.pieces);
  });
}

// Chooses, shard by shard, which rank writes.
class Chooser {
 public:
  Chooser(const TrainingModel& model, const BySource& index, const std::vector<bool>& on_agent_host)
      : model_(model), index_(index), on_agent_host_(on_agent_host), ranks_(on_agent_host.size()) {}

  std::vector<RankPlan> Run() {
    for (const uint32_t source : index_.FeedingOrder()) ChooseFor(source);
    for (RankPlan& plan : ranks_) SortEntries(model_, plan);
    return std::move(ranks_);
  }

 private:
  struct Replica {
    const Pieces* coverage = nullptr;
    const Holding* holding = nullptr;
  };

  void ChooseFor(uint32_t source) {
    std::deque<Pieces> made;
    std::vector<Replica> replicas;
    for (const uint32_t i : index_.holdings(source)) {
      const Holding& holding = model_.holdings[i];
      if (!holding.copy) replicas.push_back({Coverage(holding.pieces, made), &holding});
    }
    // Holdings come by rank: stable, so that each shard's replicas stay so.
    std::stable_sort(replicas.begin(), replicas.end(),
                     [](const Replica& a, const Replica& b) { return CoverageLess(*a.coverage, *b.coverage); });
    for (auto begin = replicas.begin(); begin != replicas.end();) {
      const auto end = std::find_if(begin, replicas.end(), [&](const Replica& replica) {
        return CoverageLess(*begin->coverage, *replica.coverage);
      });
      const auto chosen = std::min_element(begin, end, [&](const Replica& a, const Replica& b) {
        return Cost(a.holding->rank) < Cost(b.holding->rank);
      });
      AddEntries(model_, index_, *chosen->holding, ranks_[chosen->holding->rank]);
      begin = end;
    }
  }

  // Which elements of the source a holding has, however they lie in its own memory.
  static const Pieces* Coverage(const Pieces& pieces, std::deque<Pieces>& made) {
    if (pieces.size() == 1) return &pieces;
    Pieces coverage = pieces;
    for (Piece& piece : coverage) piece.source = piece.target;
    return &made.emplace_back(Normalize(std::move(coverage)));
  }

  std::pair<bool, uint64_t> Cost(uint32_t rank) const { return {!on_agent_host_[rank], ranks_[rank].bytes}; }

  const TrainingModel& model_;
  const BySource& index_;
  const std::vector<bool>& on_agent_host_;
  std::vector<RankPlan> ranks_;
};

Status CheckRanks(const TrainingModel& model, const std::vector<bool>& on_agent_host) {
  if (std::find(on_agent_host.begin(), on_agent_host.end(), true) == on_agent_host.end()) {
    return {ErrorCode::kBadData, Cat("none of ", on_agent_host.size(),
                                     " ranks is on the agent's host: at least one must reach its shared memory")};
  }
  for (const Holding& holding : model.holdings) {
    if (holding.rank < on_agent_host.size()) continue;
    return {ErrorCode::kBadData, Cat("training tensor \"", model.sources[holding.source].name, "\" is held by rank ",
                                     holding.rank, " of ", on_agent_host.size())};
  }
  return OkStatus();
}

}  // namespace

Result<CopyPlan> CompileExport(const TrainingModel& model, const std::vector<bool>& on_agent_host) {
  LS_RETURN_IF_ERROR(CheckTrainingModel(model));
  LS_RETURN_IF_ERROR(CheckRanks(model, on_agent_host));
  const BySource index(model);
  LS_RETURN_IF_ERROR(index.CheckEqualCopies());
  CopyPlan plan;
  plan.ranks = Chooser(model, index, on_agent_host).Run();
  LS_RETURN_IF_ERROR(ProveTiling(model, plan.ranks));
  for (const RankPlan& rank : plan.ranks) plan.bytes += rank.bytes;
  plan.digest = DigestOf(model, on_agent_host, plan.ranks);
  return plan;
}

Result<RankPlan> CompileImport(const TrainingModel& model, uint32_t rank) {
  LS_RETURN_IF_ERROR(CheckTrainingModel(model));
  const BySource index(model);
  LS_RETURN_IF_ERROR(index.CheckEqualCopies());
  RankPlan plan;
  for (uint32_t source = 0; source < model.sources.size(); ++source) {
    for (const uint32_t i : index.holdings(source)) {
      if (model.holdings[i].rank != rank) continue;
      AddEntries(model, index, model.holdings[i], plan);
      break;  // further ones are equal copies, filled by the same entries
    }
  }
  SortEntries(model, plan);
  return plan;
}

}  // namespace lockstep::layout
