#include "export_plugin/exporter/local_tensor.h"

#include <algorithm>

#include "common/base/text.h"

namespace lockstep::exporter {
namespace {

// No process has more; sums below it cannot overflow.
constexpr uint64_t kMaxSpanBytes = uint64_t{1} << 47;

std::string_view Name(model::DType dtype) {
  return model::FindDType(dtype)->name;
}

// Whether no two elements share bytes and the whole fits an address space.
Status CheckStrides(const LocalTensor& local) {
  if (local.strides.size() != local.shape.size()) {
    return {ErrorCode::kBadData, Cat("local tensor \"", local.name, "\" has ", local.shape.size(), " dimensions and ",
                                     local.strides.size(), " strides")};
  }
  if (std::find(local.shape.begin(), local.shape.end(), 0) != local.shape.end()) return OkStatus();
  std::vector<size_t> dims;
  for (size_t dim = 0; dim < local.shape.size(); ++dim) {
    if (local.shape[dim] > 1) dims.push_back(dim);
  }
  std::sort(dims.begin(), dims.end(), [&](size_t a, size_t b) { return local.strides[a] < local.strides[b]; });
  uint64_t span = 1;  // elements from the first to the last one of the dimensions so far
  for (const size_t dim : dims) {
    if (local.strides[dim] < span) {
      return {ErrorCode::kBadData, Cat("local tensor \"", local.name, "\": shape ", layout::ShapeText(local.shape),
                                       " with strides ", layout::ShapeText(local.strides), " overlaps itself")};
    }
    if (local.strides[dim] > kMaxSpanBytes || local.shape[dim] > kMaxSpanBytes / local.strides[dim]) {
      return {ErrorCode::kBadData, Cat("local tensor \"", local.name, "\": shape ", layout::ShapeText(local.shape),
                                       " with strides ", layout::ShapeText(local.strides), " is larger than memory")};
    }
    span += (local.shape[dim] - 1) * local.strides[dim];
  }
  return OkStatus();
}

Status CheckLocal(const LocalTensor& local, const plan::DescribedLocal& described) {
  if (local.name != described.name) {
    return {ErrorCode::kBadData, Cat("local tensor \"", local.name, "\" was given where the description has \"",
                                     described.name, "\"; give them in the description's order")};
  }
  if (local.shape != described.shape) {
    return {ErrorCode::kBadData, Cat("local tensor \"", local.name, "\" has shape ", layout::ShapeText(local.shape),
                                     "; the description says ", layout::ShapeText(described.shape))};
  }
  if (described.dtype && local.dtype != *described.dtype) {
    return {ErrorCode::kBadData, Cat("local tensor \"", local.name, "\" is ", Name(local.dtype),
                                     "; the description says ", Name(*described.dtype))};
  }
  const model::DTypeInfo& dtype = *model::FindDType(local.dtype);
  if (dtype.bits % 8 != 0) {
    return {ErrorCode::kBadData, Cat("local tensor \"", local.name, "\" is ", dtype.name,
                                     ": elements smaller than a byte cannot be cut into shards")};
  }
  return CheckStrides(local);
}

}  // namespace

Result<std::vector<plan::ShardDescription>> ParseDescriptions(std::span<const std::string> texts) {
  std::vector<plan::ShardDescription> descriptions;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    Result<plan::ShardDescription> description = plan::ParseDescription(texts[rank]);
    if (!description.ok()) return description.status().WithContext(Cat("the description of rank ", rank));
    descriptions.push_back(*std::move(description));
  }
  return descriptions;
}

Status CheckLocals(std::span<const LocalTensor> locals, const plan::ShardDescription& description) {
  const std::vector<plan::DescribedLocal> described = plan::LocalsOf(description);
  if (locals.size() != described.size()) {
    return {ErrorCode::kBadData,
            Cat(locals.size(), " local tensors were given; the rank's description describes ", described.size())};
  }
  for (size_t i = 0; i < locals.size(); ++i) LS_RETURN_IF_ERROR(CheckLocal(locals[i], described[i]));
  return OkStatus();
}

LocalsBySource LocalsOfRank(const layout::TrainingModel& model, uint32_t rank) {
  LocalsBySource locals(model.sources.size());
  const std::vector<uint32_t> sources = plan::SourcesOfRank(model, rank);
  for (uint32_t local = 0; local < sources.size(); ++local) locals[sources[local]].push_back(local);
  return locals;
}

bool AnyOnDevice(CopyEngine& engine, std::span<const LocalTensor> locals) {
  return std::any_of(locals.begin(), locals.end(),
                     [&](const LocalTensor& local) { return engine.OnDevice(local.address); });
}

bool AnyOnUnifiedMemory(CopyEngine& engine, std::span<const LocalTensor> locals) {
  return std::any_of(locals.begin(), locals.end(),
                     [&](const LocalTensor& local) { return engine.OnUnifiedMemory(local.address); });
}

layout::TensorView ViewOf(const LocalTensor& local) {
  return {local.shape, local.strides, model::FindDType(local.dtype)->bits / 8, 0};
}

layout::TensorView ViewOf(const model::TensorMeta& tensor, size_t rank) {
  return layout::TensorView::Contiguous(layout::Promoted(tensor.shape, rank), model::FindDType(tensor.dtype)->bits / 8,
                                        tensor.offset);
}

}  // namespace lockstep::exporter
