// What a version changed, tensor by tensor: how many elements, by how much, and whether there are NaN or Inf. Used by
// the agent, which has the changed elements of each block at hand (trainer_agent/run/delta_job.h), and by
// `lockstepctl log diff`.
//
// Only elements that change are looked at. So a tensor's NaN and Inf are those of the version before, plus those that
// came, less those that went.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/ids.h"
#include "common/model/layout.h"

namespace lockstep::changes {

struct TensorChange {
  uint64_t elements = 0;  // that changed
  int64_t nonfinite = 0;  // NaN and Inf among them: after less before (of a version: all)
  double squares = 0;     // of the differences, where both are finite
  double largest = 0;     // absolute difference, likewise

  void Add(const TensorChange& more);
};

// What a version changed of the one before.
struct VersionChanges {
  Version version = 0;
  Version base = 0;  // 0: there is none, and of `tensors` only `nonfinite` counts
  // Of each tensor. `nonfinite` is all that the version has.
  std::vector<TensorChange> tensors;
  TensorChange all;                // of all tensors together
  uint64_t elements = 0;           // that the model has
  uint64_t unchanged_tensors = 0;  // that have elements, of which none changed; 0 without a base
};

VersionChanges SumUp(const model::ModelLayout& layout, Version version, Version base,
                     std::vector<TensorChange> tensors);
uint64_t ElementsOf(const model::ModelLayout& layout, size_t tensor);

// Of each tensor that a block has a changed element of: its index, and what changed.
using BlockChange = std::vector<std::pair<uint32_t, TensorChange>>;

// Counts the changes of `block` between `base` and `target`. Elements of complex types have no value here: neither a
// norm nor NaN. Nor have packed ones (FP4, FP6), of which each byte that differs counts as one that changed.
class ChangeCounter {
 public:
  ChangeCounter(const model::ModelLayout& layout, BlockIndex block, const std::byte* base, const std::byte* target);

  // The next of the units (layout.block_unit) that differ, rising. REQUIRES all of an element's units in one call.
  void Take(std::span<const uint32_t> positions);
  BlockChange Finish() { return std::move(changes_); }

 private:
  const model::ModelLayout& layout_;
  const ByteRange range_;
  const uint32_t unit_;
  const std::byte* const base_;
  const std::byte* const target_;
  size_t tensor_;
  BlockChange changes_;
};

// All changes of a block, found by a plain comparison.
BlockChange CountChanges(const model::ModelLayout& layout, BlockIndex block, ByteView base, ByteView target);

// The NaN and Inf of `block`, all of it, as changes from nothing: `elements`, `squares` and `largest` are 0.
BlockChange CountNonfinite(const model::ModelLayout& layout, BlockIndex block, ByteView target);

}  // namespace lockstep::changes
