// Which host publishes which tensor of a trainer that spans several hosts. Each host's agent then has a part of the
// model (common/model/parts.h). Pure functions; every rank computes the same.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/layout/training_model.h"

namespace lockstep::layout {

// The host of each tensor: the one whose ranks hold most of its bytes, so that few bytes cross hosts; of several such
// hosts, the one that has the fewest bytes so far. Tensors that engines run as one module, and those of one group, stay
// together. `host_of_rank` counts hosts from 0. kBadData: a host would have no tensor.
Result<std::vector<uint32_t>> HostOfTensors(const TrainingModel& model, const std::vector<uint32_t>& host_of_rank);

// The model of the tensors that `host` has. Sources and holdings stay as they are, since ranks count them. kBadData as
// PlaceTensors.
Result<TrainingModel> PartOf(const TrainingModel& model, const std::vector<uint32_t>& host_of_tensor, uint32_t host);

}  // namespace lockstep::layout
