// LayoutIndex: a layout's tensors by name, and what its layers are.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/base/status.h"
#include "common/model/layout.h"

namespace lockstep::placement {

struct LayerFacts {
  bool sparse = false;          // has routed experts
  bool mtp = false;             // predicts further tokens: no layer of the decoder
  uint64_t experts = 0;         // one more than the highest number in a name; 0: dense, or all experts in one tensor
  std::vector<size_t> tensors;  // of ModelLayout::tensors()
};

class LayoutIndex {
 public:
  // kBadData names the layer that is missing between others. `layout` outlives this.
  static Result<LayoutIndex> Create(const model::ModelLayout& layout);

  // Position of a tensor in ModelLayout::tensors(), or kNone.
  size_t Find(std::string_view name) const;
  bool Has(std::string_view name) const { return Find(name) != kNone; }
  // Find, faster where the tensor is one of the few behind `before`: neighbours in a layer mostly are.
  size_t FindAfter(size_t before, std::string_view name) const;

  // By number, from 0; those for multi-token prediction come last.
  const std::vector<LayerFacts>& layers() const { return layers_; }
  const std::vector<model::TensorMeta>& tensors() const { return *tensors_; }

  static constexpr size_t kNone = ~size_t{0};

 private:
  const std::vector<model::TensorMeta>* tensors_ = nullptr;
  std::unordered_map<std::string_view, size_t> by_name_;
  std::vector<LayerFacts> layers_;
};

}  // namespace lockstep::placement
