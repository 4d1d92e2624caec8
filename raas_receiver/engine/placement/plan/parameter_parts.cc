#include "raas_receiver/engine/placement/plan/parameter_parts.h"

#include <algorithm>
#include <utility>

#include "common/base/text.h"
#include "common/layout/tiling.h"
#include "common/layout/training_model.h"
#include "raas_receiver/engine/placement/plan/tied_parameters.h"

namespace lockstep::engine {
namespace {

Status Bad(const std::string& problem) {
  return {ErrorCode::kBadData, problem};
}

std::string_view NameOf(model::DType dtype) {
  return model::FindDType(dtype)->name;
}

// `slice` as a piece; dimensions are counted, boxes are not yet within their bounds.
Result<layout::Piece> ToPiece(const model::TensorMeta& tensor, const Slice& slice, const EngineParameter& parameter) {
  const size_t rank = parameter.shape.size();
  if (tensor.shape.size() > rank) {
    return Bad(Cat("tensor \"", tensor.name, "\" has ", tensor.shape.size(), " dimensions, the parameter ", rank));
  }
  if (slice.from.size() != tensor.shape.size() || slice.shape.size() != tensor.shape.size() ||
      slice.at.size() != rank) {
    return Bad(Cat("its slice of tensor \"", tensor.name, "\" does not have the dimensions of tensor and parameter"));
  }
  if (tensor.dtype != parameter.dtype && !IsWidened(tensor.dtype, parameter.dtype)) {
    return Bad(
        Cat("the engine holds tensor \"", tensor.name, "\" as ", NameOf(parameter.dtype), " where the model has ",
            NameOf(tensor.dtype),
            ": converted or quantised; publish that dtype, or let this engine take versions from the directory"));
  }
  layout::Piece piece{slice.from, slice.at, layout::Promoted(slice.shape, rank)};
  piece.source.insert(piece.source.begin(), rank - slice.from.size(), 0);
  return piece;
}

// What gives elements of `parameter`: its slices, then its padding.
struct Content {
  std::vector<uint32_t> tensors;  // kNoTensor of padding
  layout::Pieces pieces;
};

std::string ContentText(const EngineParameter& parameter, size_t position) {
  const size_t slices = parameter.slices.size();
  if (position < slices) return Cat("slice ", position, " (of tensor \"", parameter.slices[position].tensor, "\")");
  return Cat("padding ", position - slices);
}

bool IsInside(const layout::Extents& start, const layout::Extents& size, const layout::Extents& shape) {
  for (size_t k = 0; k < shape.size(); ++k) {
    if (size[k] > shape[k] || start[k] > shape[k] - size[k]) return false;
  }
  return true;
}

Result<Content> ReadContent(const TensorTable& tensors, const EngineParameter& parameter) {
  Content content;
  content.pieces.reserve(parameter.slices.size() + parameter.padding.size());
  content.tensors.reserve(parameter.slices.size() + parameter.padding.size());
  for (size_t i = 0; i < parameter.slices.size(); ++i) {
    LS_ASSIGN_OR_RETURN(const uint32_t tensor, tensors.Find(parameter.slices[i]));
    const model::TensorMeta& meta = tensors.tensor(tensor);
    LS_ASSIGN_OR_RETURN(layout::Piece piece, ToPiece(meta, parameter.slices[i], parameter));
    if (!IsInside(parameter.slices[i].from, parameter.slices[i].shape, meta.shape)) {
      return Bad(Cat(ContentText(parameter, i), " is ",
                     layout::BoxText(parameter.slices[i].from, parameter.slices[i].shape),
                     ", which leaves the tensor of shape ", layout::ShapeText(meta.shape)));
    }
    content.tensors.push_back(tensor);
    content.pieces.push_back(std::move(piece));
  }
  for (const Padding& padding : parameter.padding) {
    content.tensors.push_back(kNoTensor);
    content.pieces.push_back({padding.at, padding.at, padding.shape});
  }
  return content;
}

// `pieces` lie in the parameter and give every element once.
Status CheckContent(const EngineParameter& parameter, const layout::Pieces& pieces) {
  const size_t rank = parameter.shape.size();
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto& [source, at, size] = pieces[i];
    if (at.size() == rank && size.size() == rank && IsInside(at, size, parameter.shape)) continue;
    return Bad(Cat(ContentText(parameter, i), " goes to ", layout::ShapeText(at), " and has shape ",
                   layout::ShapeText(size), ", which leaves the parameter of shape ",
                   layout::ShapeText(parameter.shape)));
  }
  std::vector<layout::BoxView> boxes;
  boxes.reserve(pieces.size());
  for (const layout::Piece& piece : pieces) boxes.push_back(layout::TargetView(piece, rank));
  if (const auto overlap = layout::FindOverlap(boxes, rank)) {
    const layout::Piece shared = layout::Shared(boxes[overlap->first], boxes[overlap->second], rank);
    return Bad(Cat(ContentText(parameter, overlap->first), " and ", ContentText(parameter, overlap->second),
                   " both give its elements ", layout::BoxText(shared.target, shared.size)));
  }
  if (const auto hole = layout::FindHole(boxes, parameter.shape)) {
    return Bad(Cat("no slice or padding gives ", hole->elements, " of its ", layout::ElementCount(parameter.shape),
                   " elements, the first at ", layout::ShapeText(hole->first)));
  }
  return OkStatus();
}

// Appends `form` once for every tensor in `content`, and for padding.
void AppendByTensor(Content content, const ParameterPart& form, std::vector<ParameterPart>& parts) {
  std::vector<std::pair<uint32_t, size_t>> order;  // tensor and piece
  order.reserve(content.tensors.size());
  for (size_t i = 0; i < content.tensors.size(); ++i) order.emplace_back(content.tensors[i], i);
  std::sort(order.begin(), order.end());
  for (size_t begin = 0; begin < order.size();) {
    ParameterPart part = form;
    part.tensor = order[begin].first;
    for (; begin < order.size() && order[begin].first == part.tensor; ++begin) {
      part.pieces.push_back(std::move(content.pieces[order[begin].second]));
    }
    part.pieces = layout::Normalize(std::move(part.pieces));
    if (layout::ElementCount(part.pieces) != 0) parts.push_back(std::move(part));
  }
}

}  // namespace

std::string ParameterPart::Name() const {
  return Cat("rank ", rank->rank, "'s parameter \"", parameter->name, "\"");
}

TensorTable::TensorTable(const model::ModelLayout& layout) : layout_(&layout), wanted_(layout.tensors().size(), true) {
  by_name_.reserve(layout.tensors().size());
  for (uint32_t i = 0; i < layout.tensors().size(); ++i) by_name_.emplace(layout.tensors()[i].name, i);
}

Result<TensorTable> TensorTable::Create(const model::ModelLayout& layout, const std::vector<std::string>& unused) {
  TensorTable table(layout);
  for (const std::string& name : unused) {
    const auto found = table.by_name_.find(name);
    if (found == table.by_name_.end()) return Bad(Cat("unused tensor \"", name, "\" is not in the model"));
    table.wanted_[found->second] = false;
  }
  return table;
}

Result<uint32_t> TensorTable::Find(const Slice& slice) const {
  const auto found = by_name_.find(slice.tensor);
  if (found == by_name_.end()) return Bad(Cat("the model has no tensor \"", slice.tensor, "\""));
  if (!wanted_[found->second]) return Bad(Cat("tensor \"", slice.tensor, "\" is one that the engine does not take"));
  return found->second;
}

Status AppendParts(const TensorTable& tensors, const RankDescription& rank, std::vector<ParameterPart>& parts) {
  ParameterPart form{.rank = &rank};
  for (const EngineParameter& parameter : rank.parameters) {
    form.parameter = &parameter;
    if (const Status place = CheckPlace(parameter, rank.memories); !place.ok()) return place.WithContext(form.Name());
  }
  LS_ASSIGN_OR_RETURN(const std::vector<bool> tied, FindTied(rank));
  for (size_t i = 0; i < rank.parameters.size(); ++i) {
    const EngineParameter& parameter = rank.parameters[i];
    form.parameter = &parameter;
    Result<Content> content = ReadContent(tensors, parameter);
    if (!content.ok()) return content.status().WithContext(form.Name());
    if (const Status once = CheckContent(parameter, content->pieces); !once.ok()) return once.WithContext(form.Name());
    if (!tied[i]) AppendByTensor(*std::move(content), form, parts);
  }
  return OkStatus();
}

}  // namespace lockstep::engine
