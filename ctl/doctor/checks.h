// What `lockstepctl doctor` looks at.
#pragma once

#include <string>
#include <vector>

#include "ctl/doctor/command.h"

namespace lockstep::ctl {

enum class Health { kGood, kWarning, kBad };

struct Finding {
  std::string about;
  Health health = Health::kGood;
  std::string found;
  std::string remedy;  // a command; empty where nothing is to be corrected
};

// Of everything, in the order in which it is shown.
std::vector<Finding> Examine(const DoctorOptions& options);

}  // namespace lockstep::ctl
