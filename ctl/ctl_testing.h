// For tests: runs a command line of lockstepctl in this process.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "ctl/invocation.h"

namespace lockstep::ctl {

struct Answer {
  Status status;
  std::string text;  // what it printed
};

// `words` come after the program's name.
inline Answer RunWords(const std::vector<std::string>& words) {
  std::vector<const char*> argv{"lockstepctl"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  std::ostringstream out;
  const auto invocation = ParseInvocation(static_cast<int>(argv.size()), argv.data(), out);
  if (!invocation.ok()) return {invocation.status(), ""};
  const Status status = RunCommand(**invocation, out);
  return {status, out.str()};
}

}  // namespace lockstep::ctl
