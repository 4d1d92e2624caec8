// What `lockstepctl doctor` looks at.
#pragma once

#include <string>
#include <vector>

#include "ctl/doctor/command.h"

namespace lockstep::ctl {

enum class Health { kGood, kDoubtful, kBad };

struct Finding {
  std::string about;
  Health health = Health::kGood;
  std::string found;
  std::string mend;  // a command; empty where nothing is to be mended
};

// Of everything, in the order in which it is shown.
std::vector<Finding> Examine(const DoctorOptions& options);

}  // namespace lockstep::ctl
