#include "raas_receiver/engine/placement/description/description.h"

#include <algorithm>
#include <optional>

#include "common/base/text.h"
#include "common/model/layout.h"

namespace lockstep::engine {
namespace {

Status Bad(const std::string& problem) {
  return {ErrorCode::kBadData, problem};
}

bool IsEmpty(const layout::Extents& shape) {
  return std::find(shape.begin(), shape.end(), 0) != shape.end();
}

Status CheckShape(const EngineParameter& parameter) {
  const layout::Extents& shape = parameter.shape;
  if (shape.size() > model::kMaxTensorRank) {
    return Bad(Cat("it has ", shape.size(), " dimensions; the limit is ", model::kMaxTensorRank));
  }
  if (parameter.strides.size() != shape.size()) {
    return Bad(Cat("it has ", parameter.strides.size(), " strides for ", shape.size(), " dimensions"));
  }
  uint64_t elements = 1;  // of the dimensions that are not 0
  for (const uint64_t size : shape) {
    if (size > model::kMaxDataBytes / elements)
      return Bad(Cat("shape ", layout::ShapeText(shape), " is larger than any tensor"));
    elements *= std::max<uint64_t>(size, 1);
  }
  return OkStatus();
}

// Elements that its memory must have from the first one on; nothing when those are more than any memory has.
std::optional<uint64_t> ExtentElements(const EngineParameter& parameter) {
  if (IsEmpty(parameter.shape)) return 0;
  uint64_t elements = 1;
  for (size_t k = 0; k < parameter.shape.size(); ++k) {
    uint64_t steps = 0;
    if (__builtin_mul_overflow(parameter.shape[k] - 1, parameter.strides[k], &steps)) return std::nullopt;
    if (steps > model::kMaxDataBytes - elements) return std::nullopt;
    elements += steps;
  }
  return elements;
}

// REQUIRES ExtentElements to fit.
Status CheckStrides(const EngineParameter& parameter) {
  std::vector<std::pair<uint64_t, uint64_t>> steps;  // stride and size
  for (size_t k = 0; k < parameter.shape.size(); ++k) {
    if (parameter.shape[k] > 1) steps.emplace_back(parameter.strides[k], parameter.shape[k]);
  }
  std::sort(steps.begin(), steps.end());
  uint64_t within = 1;
  for (const auto& [stride, size] : steps) {
    if (stride < within) {
      return Bad(Cat("strides ", layout::ShapeText(parameter.strides), " make elements of shape ",
                     layout::ShapeText(parameter.shape), " overlap or interleave"));
    }
    within += (size - 1) * stride;
  }
  return OkStatus();
}

}  // namespace

bool IsWidened(model::DType tensor, model::DType parameter) {
  return tensor == model::DType::kBF16 && parameter == model::DType::kF32;
}

layout::TensorView ViewOf(const EngineParameter& parameter) {
  layout::TensorView view{.shape = parameter.shape,
                          .strides = parameter.strides,
                          .element_bytes = model::FindDType(parameter.dtype)->bits / 8,
                          .offset = parameter.offset};
  for (size_t k = 0; k < view.shape.size(); ++k) {
    if (view.shape[k] <= 1) view.strides[k] = 0;
  }
  return view;
}

uint64_t ExtentBytes(const EngineParameter& parameter) {
  return ExtentElements(parameter).value_or(0) * (model::FindDType(parameter.dtype)->bits / 8);
}

Status CheckPlace(const EngineParameter& parameter, const std::vector<uint64_t>& memories) {
  const model::DTypeInfo* type = model::FindDType(parameter.dtype);
  if (type == nullptr || type->bits % 8 != 0) {
    return Bad("its elements share bytes, which nothing can write one by one");
  }
  LS_RETURN_IF_ERROR(CheckShape(parameter));
  if (parameter.memory >= memories.size()) {
    return Bad(Cat("it lies in memory ", parameter.memory, " of ", memories.size()));
  }
  const uint64_t bytes = memories[parameter.memory];
  const std::optional<uint64_t> elements = ExtentElements(parameter);
  const uint64_t most = parameter.offset > bytes ? 0 : (bytes - parameter.offset) / (type->bits / 8);
  if (!elements.has_value() || parameter.offset > bytes || *elements > most) {
    return Bad(Cat("shape ", layout::ShapeText(parameter.shape), " of ", type->name, " with strides ",
                   layout::ShapeText(parameter.strides), " at byte ", parameter.offset, " leaves memory ",
                   parameter.memory, " of ", bytes, " bytes"));
  }
  return *elements == 0 ? OkStatus() : CheckStrides(parameter);
}

}  // namespace lockstep::engine
