// Internal to the plan: from shares to what is written into each window: copies, and the zeros beside them.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/layout/strided_copy.h"
#include "common/model/layout.h"
#include "raas_receiver/placement/shares.h"

namespace lockstep {

// A parameter that lies so scattered that lists of copies are no way to write it, and a plan that is too large to keep.
inline constexpr uint64_t kMaxCopiesOfParameter = uint64_t{1} << 20;
inline constexpr uint64_t kMaxCopies = uint64_t{1} << 24;

class CopyBuilder {
 public:
  // `layout` outlives it.
  CopyBuilder(const ModelLayout& layout, size_t windows) : layout_(layout), copies_(windows), zeros_(windows) {}

  // REQUIRES shares of one parameter to follow one another. kBadData names the parameter that takes too many copies.
  Status Append(const Share& share);

  // By window, by rising target.
  std::vector<std::vector<StridedCopy>> TakeCopies();
  std::vector<std::vector<StridedRange>> TakeZeros();

 private:
  using Lists = std::vector<std::vector<StridedCopy>>;  // by window

  Status AppendTo(Lists& lists, const Share& share, const Pieces& pieces, const TensorView& source,
                  const TensorView& target);

  const ModelLayout& layout_;
  Lists copies_;
  Lists zeros_;  // of which only the targets count
  uint64_t count_ = 0;
  // Of the share before.
  const EngineParameter* parameter_ = nullptr;
  TensorView view_;
  uint64_t count_of_parameter_ = 0;
};

}  // namespace lockstep
