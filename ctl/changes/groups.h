// Internal to ctl/changes. A model's tensors, in groups.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ctl/changes/changes.h"

namespace lockstep::ctl {

// Of the tensors of a group together.
struct GroupChange {
  uint64_t tensors = 0;
  uint64_t unchanged = 0;  // of the tensors
  uint64_t elements = 0;
  uint64_t changed = 0;
  uint64_t nonfinite = 0;
  double squares = 0;
  double largest = 0;

  void Add(const v1::Change& change);
  double share() const { return elements == 0 ? 0 : static_cast<double>(changed) / static_cast<double>(elements); }
};

// Where a group stands among others: by the words of its name, then by its numbers.
using GroupKey = std::pair<std::string, std::vector<uint64_t>>;

// model.layers.3.mlp.experts.17.up_proj.weight is of the layer model.layers.3, of the expert
// model.layers.3.mlp.experts.17, and of the kind model.layers.*.mlp.experts.*.up_proj.weight. A tensor without a number
// is its own layer, and one with fewer than two is of its layer's expert.
GroupKey KeyOf(const v1::TensorChange& tensor, GroupBy by);
std::string NameOf(const GroupKey& key);

std::map<GroupKey, GroupChange> Group(const v1::VersionChanges& changes, GroupBy by);

}  // namespace lockstep::ctl
