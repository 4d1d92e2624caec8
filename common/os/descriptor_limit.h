// For tests: how many descriptors this process may have.
#pragma once

#include <sys/resource.h>

#include <algorithm>

namespace lockstep::os {

// At most `most`, as long as this lives.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t most) {
    (void)::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit now{std::min(most, before_.rlim_max), before_.rlim_max};
    (void)::setrlimit(RLIMIT_NOFILE, &now);
    limit_ = now.rlim_cur;
  }
  ~DescriptorLimit() { (void)::setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

  rlim_t get() const { return limit_; }

 private:
  rlimit before_{};
  rlim_t limit_ = 0;
};

}  // namespace lockstep::os
