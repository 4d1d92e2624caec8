#include "common/layout/training_model.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "common/base/text.h"
#include "common/layout/tiling.h"

namespace lockstep::layout {
namespace {

Status Bad(const std::string& problem) {
  return {ErrorCode::kBadData, problem};
}

Status CheckShape(const Extents& shape) {
  if (shape.size() > model::kMaxTensorRank) {
    return Bad(Cat("it has ", shape.size(), " dimensions; the limit is ", model::kMaxTensorRank));
  }
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return OkStatus();
  uint64_t elements = 1;
  for (const uint64_t size : shape) {
    if (size > model::kMaxDataBytes / elements) {
      return Bad(Cat("its shape ", ShapeText(shape), " has more than ", model::kMaxDataBytes, " elements"));
    }
    elements *= size;
  }
  return OkStatus();
}

Status CheckPieces(const Pieces& pieces, const Extents& source_shape, const Extents& target_shape) {
  LS_RETURN_IF_ERROR(CheckBounds(pieces, source_shape, target_shape));
  return CheckDisjoint(pieces);
}

Status CheckTensors(const TrainingModel& model) {
  if (model.tensors.empty()) return Bad("there is no HuggingFace tensor to make");
  if (model.tensors.size() > model::kMaxTensors) {
    return Bad(Cat("there are ", model.tensors.size(), " HuggingFace tensors; the limit is ", model::kMaxTensors));
  }
  if (model.groups.size() != model.tensors.size()) {
    return Bad(Cat(model.tensors.size(), " HuggingFace tensors have ", model.groups.size(), " groups"));
  }
  for (const model::TensorMeta& tensor : model.tensors) {
    LS_RETURN_IF_ERROR(model::TensorBytes(tensor));
    const model::DTypeInfo* type = model::FindDType(tensor.dtype);
    if (type->bits % 8 != 0) {
      return Bad(Cat("tensor \"", tensor.name, "\": elements of ", type->name,
                     " share bytes and cannot be moved one by one; export the packed bytes as U8"));
    }
  }
  return OkStatus();
}

Status CheckSources(const TrainingModel& model) {
  std::unordered_set<std::string_view> names;
  names.reserve(model.sources.size());
  for (const SourceTensor& source : model.sources) {
    Status status = CheckShape(source.shape);
    if (status.ok() && !names.insert(source.name).second) status = Bad("the name is given twice");
    if (!status.ok()) return status.WithContext(Cat("training tensor \"", source.name, "\""));
  }
  return OkStatus();
}

Status CheckConversion(const TrainingModel& model, const Conversion& conversion) {
  if (conversion.source >= model.sources.size() || conversion.tensor >= model.tensors.size()) {
    return Bad(Cat("a conversion names training tensor ", conversion.source, " of ", model.sources.size(),
                   " and HuggingFace tensor ", conversion.tensor, " of ", model.tensors.size()));
  }
  const SourceTensor& source = model.sources[conversion.source];
  const model::TensorMeta& tensor = model.tensors[conversion.tensor];
  const Status status = CheckPieces(conversion.pieces, source.shape, Promoted(tensor.shape, source.shape.size()));
  if (status.ok()) return status;
  return status.WithContext(Cat("tensor \"", tensor.name, "\" from training tensor \"", source.name, "\""));
}

Status CheckHolding(const TrainingModel& model, const Holding& holding) {
  if (holding.source >= model.sources.size()) {
    return Bad(Cat("rank ", holding.rank, " holds training tensor ", holding.source, " of ", model.sources.size()));
  }
  if (holding.pieces.empty()) return OkStatus();
  const SourceTensor& source = model.sources[holding.source];
  Status status = CheckShape(holding.local_shape);
  if (status.ok()) status = CheckPieces(holding.pieces, holding.local_shape, source.shape);
  if (status.ok()) return status;
  return status.WithContext(Cat("training tensor \"", source.name, "\" on rank ", holding.rank));
}

}  // namespace

std::vector<model::TensorMeta> HuggingFaceTensors(const TrainingModel& model) {
  std::vector<model::TensorMeta> tensors = model.tensors;
  if (model.huggingface_shapes.empty()) return tensors;
  for (model::TensorMeta& tensor : tensors) {
    if (const auto found = model.huggingface_shapes.find(tensor.name); found != model.huggingface_shapes.end()) {
      tensor.shape = found->second;
    }
  }
  return tensors;
}

Status PlaceTensors(TrainingModel& model) {
  std::unordered_map<std::string, uint32_t> before;
  before.reserve(model.tensors.size());
  for (uint32_t i = 0; i < model.tensors.size(); ++i) {
    if (before.emplace(model.tensors[i].name, i).second) continue;
    return {ErrorCode::kBadData, Cat("HuggingFace tensor \"", model.tensors[i].name, "\" is made twice")};
  }
  LS_RETURN_IF_ERROR(model::AssignOffsets(model.tensors));
  std::vector<uint32_t> now(model.tensors.size());
  std::vector<uint32_t> groups(model.tensors.size());
  for (uint32_t i = 0; i < model.tensors.size(); ++i) {
    const uint32_t was = before.find(model.tensors[i].name)->second;
    now[was] = i;
    groups[i] = model.groups[was];
  }
  model.groups = std::move(groups);
  for (Conversion& conversion : model.conversions) conversion.tensor = now[conversion.tensor];
  return OkStatus();
}

Extents Promoted(Extents shape, size_t rank) {
  if (shape.size() < rank) shape.insert(shape.begin(), rank - shape.size(), 1);
  return shape;
}

Status CheckTrainingModel(const TrainingModel& model) {
  LS_RETURN_IF_ERROR(CheckTensors(model));
  LS_RETURN_IF_ERROR(CheckSources(model));
  for (const Conversion& conversion : model.conversions) LS_RETURN_IF_ERROR(CheckConversion(model, conversion));
  for (const Holding& holding : model.holdings) LS_RETURN_IF_ERROR(CheckHolding(model, holding));
  return OkStatus();
}

}  // namespace lockstep::layout
