// PlacementPlan: how the bytes of a HuggingFace layout lie in the memories of an engine's ranks. Compiled once, proved,
// then run for whole versions (copies and zeros) and looked up for changes (bands). Pure data.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/layout/strided_copy.h"
#include "common/model/layout.h"
#include "raas_receiver/placement/description.h"

namespace lockstep {

using PlacementDigest = Id128<struct PlacementDigestTag>;

// One memory of one rank (either half's: both are laid out alike). What target offsets count from.
struct Window {
  uint32_t rank = 0;    // position in Compile's list
  uint32_t memory = 0;  // of the rank's description
  uint64_t bytes = 0;
};

// Where columns of a band's rows go: byte c of row r, for c in [column, column + bytes), is byte
// target_offset + r * target_pitch + (c - column) of the window. The pitch of one row is 0.
struct Way {
  uint64_t column = 0;
  uint64_t bytes = 0;
  uint32_t window = 0;
  uint64_t target_offset = 0;
  uint64_t target_pitch = 0;
};

// Neighbouring rows of the data section that all go the same ways.
struct Band {
  uint64_t offset = 0;  // into the data section
  uint64_t rows = 1;
  uint64_t pitch = 0;  // bytes of a row
  uint32_t first_way = 0;
  uint32_t ways = 0;  // by rising column; together they cover the row, and may cover the same columns

  uint64_t end() const { return offset + rows * pitch; }
};

class PlacementPlan {
 public:
  // `ranks`, completed (rules.h), are all ranks of one engine, `unused` the tensors it does not take. kBadData names
  // the rank, parameter or tensor of the first rule broken: a slice of a tensor that is not in the layout, of another
  // dtype, or outside it; an element of a parameter given twice or by nothing; an element of a wanted tensor that no
  // rank takes; parameters that overlap in memory (unless they lie at one place and are made of the same: a tied head);
  // a parameter that lies so scattered that its ways or copies are more than 2^20, or those of all more than 2^24.
  static Result<std::shared_ptr<const PlacementPlan>> Compile(const ModelLayout& layout,
                                                              const std::vector<RankDescription>& ranks,
                                                              const std::vector<std::string>& unused);

  const std::vector<Window>& windows() const { return windows_; }
  // The copies that fill `window` from the data section.
  std::span<const StridedCopy> copies(uint32_t window) const { return copies_[window]; }
  uint64_t copied_bytes(uint32_t window) const;
  // What must be zero beside them: padding, and the lower halves of BF16 in F32. Changes never touch it.
  std::span<const StridedRange> zeros(uint32_t window) const { return zeros_[window]; }

  // By rising offset, not overlapping. Bytes between bands are of tensors that the engine does not take.
  std::span<const Band> bands() const { return bands_; }
  std::span<const Way> ways(const Band& band) const { return std::span(ways_).subspan(band.first_way, band.ways); }
  // The first band that ends after `offset`; bands().end() when there is none.
  std::span<const Band>::iterator BandAt(uint64_t offset) const;

  // Of what the plan does: the layout, the windows, their copies and zeros.
  const PlacementDigest& digest() const { return digest_; }

 private:
  PlacementPlan() = default;

  std::vector<Window> windows_;
  std::vector<std::vector<StridedCopy>> copies_;  // by window
  std::vector<std::vector<StridedRange>> zeros_;  // by window
  std::vector<Band> bands_;
  std::vector<Way> ways_;
  PlacementDigest digest_;
};

}  // namespace lockstep
