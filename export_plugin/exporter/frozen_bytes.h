// FrozenBytes: which slots hold the frozen tensors that a rank writes, its own and those that it takes in for others.
//
// Each slot gets one copy of them. Both slots are compared before the first report that they are unchanged: if a tensor
// described as frozen changed between its two copies, receivers would hold a mixture that cannot be verified.
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

  // Whether both slots hold the frozen bytes, so that these need not be copied.
  bool in_both() const { return in_slot_[0] && in_slot_[1]; }

  // Compares the slots' data sections, once. kBadData names the first tensor that differs; then neither slot counts as
  // holding them any more. `pool` may be null.
  Status CheckEqual(const std::byte* one, const std::byte* other, const model::ModelLayout& layout, WorkerPool* pool);

  // A version in `slot` ended. If it failed, it is unknown which bytes the slot has, and they must be copied again.
  void Settle(size_t slot, bool ok);

 private:
  std::vector<StridedRange> ranges_;
  std::array<bool, 2> in_slot_{};
  bool equal_ = false;  // the slots were compared since they were last copied, and are equal
};

}  // namespace lockstep::exporter
