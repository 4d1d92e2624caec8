// Internal to the plan: the parts of all ranks' parameters, each of one tensor, checked, as pieces.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/base/status.h"
#include "common/layout/piece.h"
#include "common/model/layout.h"
#include "raas_receiver/engine/placement/description/description.h"

namespace lockstep::engine {

// A parameter that lies so scattered that no list of copies should be made of it, and a plan that is too large to keep.
inline constexpr uint64_t kMaxCopiesOfParameter = uint64_t{1} << 20;
inline constexpr uint64_t kMaxCopies = uint64_t{1} << 24;

// Of parts: elements that come from no tensor.
inline constexpr uint32_t kNoTensor = UINT32_MAX;

// What one parameter has of one tensor, or of none: its padding.
struct ParameterPart {
  uint32_t tensor = 0;  // of the layout, or kNoTensor
  const RankDescription* rank = nullptr;
  const EngineParameter* parameter = nullptr;
  // HuggingFace tensor, Promoted() to the parameter's rank -> parameter; of padding parameter -> parameter. In
  // canonical form.
  layout::Pieces pieces;

  std::string Name() const;  // for messages: rank 3's parameter "model.norm.weight"
};

// The tensors of a layout by name, and whether the engine takes them.
class TensorTable {
 public:
  // kBadData for an unused tensor that is not in the layout. `layout` and `unused` outlive it.
  static Result<TensorTable> Create(const model::ModelLayout& layout, const std::vector<std::string>& unused);

  // The tensor that `slice` is cut from; kBadData when there is none, or it is not to be taken.
  Result<uint32_t> Find(const Slice& slice) const;
  bool wanted(size_t tensor) const { return wanted_[tensor]; }
  const model::TensorMeta& tensor(size_t tensor) const { return layout_->tensors()[tensor]; }

 private:
  explicit TensorTable(const model::ModelLayout& layout);

  const model::ModelLayout* layout_;
  std::unordered_map<std::string_view, uint32_t> by_name_;
  std::vector<bool> wanted_;
};

// Appends the parts of `rank`, those of a parameter together. Parameters that lie at one place and are made of the same
// count once. kBadData names the parameter of the first rule broken; see CompilePlacement. `rank` outlives the parts.
Status AppendParts(const TensorTable& tensors, const RankDescription& rank, std::vector<ParameterPart>& parts);

}  // namespace lockstep::engine
