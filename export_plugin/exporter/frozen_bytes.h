// FrozenBytes: which slots hold the frozen tensors that a rank writes, its own and those that it takes in for others.
//
// They are copied into each slot once. Before they are first reported as unchanged, both slots are compared: a tensor
// that was said to be frozen but changed between its two copies would make receivers hold a mixture that nobody can
// prove.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "common/model/layout.h"

namespace lockstep::exporter {

// Not thread-safe.
class FrozenBytes {
 public:
  void Add(std::span<const StridedRange> ranges) { ranges_.insert(ranges_.end(), ranges.begin(), ranges.end()); }

  // Whether both slots hold them, so that they need not be copied.
  bool in_both() const { return in_slot_[0] && in_slot_[1]; }

  // Compares the slots' data sections, once. kBadData names the first tensor that differs; then neither slot counts as
  // holding them any more. `pool` may be null.
  Status CheckEqual(const std::byte* one, const std::byte* other, const model::ModelLayout& layout, WorkerPool* pool);

  // The end of a version in `slot`: when it failed, nobody knows how far the slot's bytes came.
  void Settle(size_t slot, bool ok);

 private:
  std::vector<StridedRange> ranges_;
  std::array<bool, 2> in_slot_{};
  bool equal_ = false;  // found to be, since they were last copied
};

}  // namespace lockstep::exporter
