#include <limits>

#include "common/base/text.h"
#include "export_plugin/plan/part_model.h"

namespace lockstep::plan {
namespace {

constexpr size_t kRanksNamed = 8;
constexpr uint32_t kNobody = std::numeric_limits<uint32_t>::max();

// "3, 5, 6 and 12 more"
std::string RanksText(const std::vector<uint32_t>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size() && i < kRanksNamed; ++i) text += Cat(i == 0 ? "" : ", ", ranks[i]);
  return ranks.size() > kRanksNamed ? Cat(text, " and ", ranks.size() - kRanksNamed, " more") : text;
}

Status CheckSameConfig(const std::vector<const MegatronDescription*>& ranks) {
  std::vector<uint32_t> different;
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank]->config != ranks[0]->config) different.push_back(rank);
  }
  if (different.empty()) return OkStatus();
  return {ErrorCode::kBadData,
          Cat("the model configuration of rank ", RanksText(different), " is not that of rank 0; give all the same")};
}

Status CheckSameSizes(const std::vector<const MegatronDescription*>& ranks) {
  const auto sizes = [](const rules::RankCoordinates& place) {
    return Cat("tensor ", place.tensor.of, ", expert ", place.expert.of, ", expert_tensor ", place.expert_tensor.of);
  };
  const std::string first = sizes(ranks[0]->place);
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string own = sizes(ranks[rank]->place);
    if (own == first) continue;
    return {ErrorCode::kBadData, Cat("rank ", rank, " counts groups of ", own, "; rank 0 counts ", first)};
  }
  return OkStatus();
}

// The holdings of one rank at a time; refuses what would leave open which local tensor is meant.
class RankHoldings {
 public:
  // A source becomes frozen in `model` where every rank that holds it says so.
  RankHoldings(const rules::MegatronRules& rules, layout::TrainingModel& model)
      : rules_(rules), model_(model), mentioned_(model.sources.size()), held_by_(model.sources.size(), Held{}) {}

  Result<std::vector<layout::Holding>> Of(uint32_t rank, const MegatronDescription& description) {
    std::vector<layout::Holding> holdings;
    holdings.reserve(description.parameters.size());
    for (uint32_t i = 0; i < description.parameters.size(); ++i) {
      const rules::LocalParameter& parameter = description.parameters[i];
      Result<layout::Holding> holding = rules_.HoldingOf(parameter, description.place);
      if (!holding.ok()) return holding.status().WithContext(Cat("rank ", rank));
      layout::SourceTensor& source = model_.sources[holding->source];
      if (!holding->copy) {
        Held& held = held_by_[holding->source];
        if (held.rank == rank) {
          return Status(ErrorCode::kBadData,
                        Cat("rank ", rank, " holds ", source.name, " twice: as ",
                            description.parameters[held.parameter].name, " and as ", parameter.name));
        }
        held = {.rank = rank, .parameter = i};
      }
      source.frozen = parameter.frozen && (source.frozen || !mentioned_[holding->source]);
      mentioned_[holding->source] = true;
      holding->rank = rank;
      holdings.push_back(*std::move(holding));
    }
    return holdings;
  }

 private:
  struct Held {
    uint32_t rank = kNobody;  // the last one that held the source
    uint32_t parameter = 0;
  };

  const rules::MegatronRules& rules_;
  layout::TrainingModel& model_;
  std::vector<bool> mentioned_;  // by source
  std::vector<Held> held_by_;
};

}  // namespace

Result<PartModel> BuildMegatronPart(const std::vector<const MegatronDescription*>& ranks) {
  LS_RETURN_IF_ERROR(CheckSameConfig(ranks));
  LS_RETURN_IF_ERROR(CheckSameSizes(ranks));
  LS_ASSIGN_OR_RETURN(rules::ModelConfig config, rules::ParseModelConfig(ranks[0]->config));
  LS_ASSIGN_OR_RETURN(const rules::MegatronRules rules, rules::MegatronRules::Create(std::move(config)));
  PartModel part{.model = rules.model()};
  RankHoldings holdings(rules, part.model);
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    LS_ASSIGN_OR_RETURN(std::vector<layout::Holding> held, holdings.Of(rank, *ranks[rank]));
    part.holdings.push_back(std::move(held));
  }
  return part;
}

}  // namespace lockstep::plan
