// Guard: what a trainer wants a version to keep, before it is committed. Given with BEGIN (FORMAT.md), checked when all
// of the version was compared. For ModelPublisher.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/changes/version_changes.h"
#include "common/model/layout.h"

namespace lockstep::run {

inline constexpr size_t kMaxGuardText = 4096;

struct Guard {
  bool refuse_nonfinite = false;  // any NaN or Inf
  double least_density = 0;       // changed elements of all, in a version that has one before
  double most_density = 1;
  double largest_step = std::numeric_limits<double>::infinity();  // absolute, of any element
};

// A JSON object of any of "nonfinite": "refuse" or "count", "density": [LEAST, MOST], "largest_step": X. kBadData names
// what is wrong.
Result<Guard> ReadGuard(std::string_view json);

// kBadData: what the version breaks, with the names of tensors. Of a version that has none before, `nonfinite` counts
// alone.
Status CheckGuard(const Guard& guard, const model::ModelLayout& layout, const changes::VersionChanges& changes);

// "a, b, c, d and 3 others": the tensors that have NaN or Inf, those with most first.
std::string NamesOfNonfinite(const model::ModelLayout& layout, const changes::VersionChanges& changes);

}  // namespace lockstep::run
