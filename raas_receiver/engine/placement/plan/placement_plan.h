// PlacementPlan: how the bytes of a HuggingFace layout lie in the memories of an engine's ranks. Compiled once, proved,
// then run for whole versions and looked up for changes. Pure data.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/layout.h"
#include "raas_receiver/engine/placement/description/description.h"
#include "raas_receiver/engine/placement/plan/rank_placement.h"

namespace lockstep::engine {

// By rank, in the order of their descriptions.
using PlacementPlan = std::vector<RankPlacement>;

// Which ranks of an engine are looked at. Others may take what some do not.
enum class Looked { kAll, kSome };

// The tensors that no parameter of `ranks` takes. kBadData names one that no `ignore` of a rank matches, where all are
// looked at.
Result<std::vector<std::string>> UnusedTensors(const model::ModelLayout& layout,
                                               const std::vector<RankDescription>& ranks, Looked looked = Looked::kAll);

// `ranks` are those of one engine, `unused` the tensors that they do not take. kBadData names the rank, parameter or
// tensor of the first rule broken: a slice of a tensor that is not in the layout, of another dtype, or outside it; an
// element of a parameter given twice or by nothing; an element of a wanted tensor that no rank takes, where all are
// looked at; parameters that overlap in memory (unless they lie at one place and are made of the same: a tied head); a
// parameter that lies so scattered that its copies are more than 2^20, or those of all more than 2^24.
Result<std::shared_ptr<const PlacementPlan>> CompilePlacement(const model::ModelLayout& layout,
                                                              const std::vector<RankDescription>& ranks,
                                                              const std::vector<std::string>& unused,
                                                              Looked looked = Looked::kAll);

// Names the plan: two with equal digests put the same bytes into the same places of the same ranks.
std::array<uint8_t, 16> DigestOf(const PlacementPlan& plan);

}  // namespace lockstep::engine
