// What the agent needs for a derived model, for `lockstepctl plan --derive`.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/layout.h"
#include "ctl/output/json.h"

namespace lockstep::ctl {

struct DerivedReport {
  std::string format;
  size_t quantised = 0;    // weights
  uint64_t bytes = 0;      // of the derived model; the agent holds it twice
  double bytes_per_s = 0;  // of the source, by one thread of this machine: measured just now
  double seconds = 0;      // for the whole source by one thread

  Json ToJson() const;
  std::string Text() const;
};

// Of the model that has `tensors`, as a checkpoint with this config.json. kBadData: what is wrong with it or a tensor.
Result<DerivedReport> ReportDerived(const std::vector<model::TensorMeta>& tensors, const std::string& config);

}  // namespace lockstep::ctl
