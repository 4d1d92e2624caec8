// The parts of all ranks' descriptions, put together.
#include "common/base/text.h"
#include "common/model/layout.h"
#include "export_plugin/plan/part_model.h"

namespace lockstep::plan {
namespace {

template <typename Kind>
std::vector<const Kind*> PartOfAll(const std::vector<ShardDescription>& descriptions, size_t part) {
  std::vector<const Kind*> ranks;
  ranks.reserve(descriptions.size());
  for (const ShardDescription& description : descriptions) ranks.push_back(&std::get<Kind>(description.parts[part]));
  return ranks;
}

Status CheckSameParts(const std::vector<ShardDescription>& descriptions) {
  if (descriptions.empty() || descriptions.size() > kMaxDescriptions) {
    return {ErrorCode::kBadData,
            Cat("there are ", descriptions.size(), " descriptions; a trainer has 1 to ", kMaxDescriptions, " ranks")};
  }
  for (size_t rank = 0; rank < descriptions.size(); ++rank) {
    const std::vector<PartDescription>& parts = descriptions[rank].parts;
    if (parts.size() != descriptions[0].parts.size()) {
      return {ErrorCode::kBadData,
              Cat("rank ", rank, " has ", parts.size(), " parts, rank 0 has ", descriptions[0].parts.size())};
    }
    for (size_t part = 0; part < parts.size(); ++part) {
      if (parts[part].index() == descriptions[0].parts[part].index()) continue;
      return {ErrorCode::kBadData, Cat("parts[", part, "] of rank ", rank, " and of rank 0 are of different kinds")};
    }
  }
  return OkStatus();
}

// Moves tensors, sources and conversions of `part` behind those of `whole`, and counts its holdings' sources from
// there.
Status Append(PartModel& part, layout::TrainingModel& whole) {
  const auto first_source = static_cast<uint32_t>(whole.sources.size());
  const auto first_tensor = static_cast<uint32_t>(whole.tensors.size());
  const uint32_t first_group = whole.groups.empty() ? 0 : whole.groups.back() + 1;
  if (whole.tensors.size() + part.model.tensors.size() > model::kMaxTensors ||
      whole.sources.size() + part.model.sources.size() > model::kMaxTensors) {
    return {ErrorCode::kBadData, Cat("the model has more than ", model::kMaxTensors, " tensors")};
  }
  for (model::TensorMeta& tensor : part.model.tensors) whole.tensors.push_back(std::move(tensor));
  whole.huggingface_shapes.merge(part.model.huggingface_shapes);
  for (const uint32_t group : part.model.groups) whole.groups.push_back(first_group + group);
  for (layout::SourceTensor& source : part.model.sources) whole.sources.push_back(std::move(source));
  for (layout::Conversion& conversion : part.model.conversions) {
    conversion.source += first_source;
    conversion.tensor += first_tensor;
    whole.conversions.push_back(std::move(conversion));
  }
  for (std::vector<layout::Holding>& of_rank : part.holdings) {
    for (layout::Holding& holding : of_rank) holding.source += first_source;
  }
  return OkStatus();
}

}  // namespace

Result<layout::TrainingModel> BuildTrainingModel(const std::vector<ShardDescription>& descriptions) {
  LS_RETURN_IF_ERROR(CheckSameParts(descriptions));
  layout::TrainingModel model;
  std::vector<PartModel> parts;
  for (size_t i = 0; i < descriptions[0].parts.size(); ++i) {
    Result<PartModel> part = std::holds_alternative<MegatronDescription>(descriptions[0].parts[i])
                                 ? BuildMegatronPart(PartOfAll<MegatronDescription>(descriptions, i))
                                 : BuildTensorPart(PartOfAll<std::vector<TensorDescription>>(descriptions, i));
    if (!part.ok()) return part.status().WithContext(Cat("parts[", i, "]"));
    LS_RETURN_IF_ERROR(Append(*part, model));
    parts.push_back(*std::move(part));
  }
  LS_RETURN_IF_ERROR(layout::PlaceTensors(model));
  for (uint32_t rank = 0; rank < descriptions.size(); ++rank) {
    for (PartModel& part : parts) {
      for (layout::Holding& holding : part.holdings[rank]) model.holdings.push_back(std::move(holding));
    }
  }
  return model;
}

std::vector<uint32_t> SourcesOfRank(const layout::TrainingModel& model, uint32_t rank) {
  std::vector<uint32_t> sources;
  for (const layout::Holding& holding : model.holdings) {
    if (holding.rank == rank) sources.push_back(holding.source);
  }
  return sources;
}

std::vector<bool> OnAgentHost(const std::vector<ShardDescription>& descriptions) {
  std::vector<bool> beside;
  for (const ShardDescription& description : descriptions) beside.push_back(description.on_agent_host);
  return beside;
}

}  // namespace lockstep::plan
