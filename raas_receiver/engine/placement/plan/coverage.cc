#include "raas_receiver/engine/placement/plan/coverage.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "common/base/text.h"
#include "common/layout/tiling.h"

namespace lockstep::engine {
namespace {

using Boxes = std::vector<layout::BoxView>;

bool IsWhole(const layout::BoxView& box, size_t from, const layout::Extents& shape) {
  for (size_t k = from; k < shape.size(); ++k) {
    if (box.size[k] != shape[k]) return false;
  }
  return true;
}

// The first element in none of `boxes`, which have all of the dimensions before `dim`: its indices from `dim` on.
std::optional<layout::Extents> FirstUntaken(Boxes boxes, size_t dim, const layout::Extents& shape) {
  const auto whole = [&](const layout::BoxView& box) { return IsWhole(box, dim, shape); };
  if (std::any_of(boxes.begin(), boxes.end(), whole)) return std::nullopt;
  if (boxes.empty()) return layout::Extents(shape.size() - dim);
  const auto start = [dim](const layout::BoxView& box) { return box.start[dim]; };
  const auto end = [dim](const layout::BoxView& box) { return box.start[dim] + box.size[dim]; };
  std::sort(boxes.begin(), boxes.end(), [&](const auto& a, const auto& b) { return start(a) < start(b); });
  Boxes inside;
  size_t entered = 0;
  for (uint64_t at = 0; at < shape[dim];) {
    std::erase_if(inside, [&](const layout::BoxView& box) { return end(box) <= at; });
    for (; entered < boxes.size() && start(boxes[entered]) <= at; ++entered) inside.push_back(boxes[entered]);
    if (auto rest = FirstUntaken(inside, dim + 1, shape)) {
      rest->insert(rest->begin(), at);
      return rest;
    }
    // Up to the next change what is inside stays the same.
    uint64_t next = entered < boxes.size() ? start(boxes[entered]) : shape[dim];
    for (const layout::BoxView& box : inside) next = std::min(next, end(box));
    at = next;
  }
  return std::nullopt;
}

}  // namespace

Status CheckTaken(const model::TensorMeta& tensor, std::span<const ParameterPart* const> parts) {
  const size_t rank = tensor.shape.size();
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) return OkStatus();
  if (parts.empty()) return {ErrorCode::kBadData, Cat("no rank takes tensor \"", tensor.name, "\"")};
  Boxes boxes;
  for (const ParameterPart* part : parts) {
    for (const layout::Piece& piece : part->pieces) {
      const size_t skip = piece.size.size() - rank;
      boxes.push_back({piece.source.data() + skip, piece.size.data() + skip});
    }
  }
  const auto first = FirstUntaken(std::move(boxes), 0, tensor.shape);
  if (!first) return OkStatus();
  return {ErrorCode::kBadData,
          Cat("no rank takes element ", layout::ShapeText(*first), " of tensor \"", tensor.name, "\"")};
}

}  // namespace lockstep::engine
