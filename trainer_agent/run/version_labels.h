// VersionLabels: the labels of one run's versions, as far as the newest kRemembered of them.
#pragma once

#include <deque>
#include <string>
#include <utility>

#include "common/base/ids.h"

namespace lockstep::run {

// Not thread-safe.
class VersionLabels {
 public:
  static constexpr size_t kRemembered = 4096;

  // REQUIRES `version` to be greater than all before.
  void Add(Version version, std::string label) {
    if (label.empty()) return;
    labels_.emplace_back(version, std::move(label));
    if (labels_.size() > kRemembered) labels_.pop_front();
  }

  // Returns the label of `version`; empty when it has none, or none that is remembered.
  std::string Of(Version version) const {
    for (auto at = labels_.rbegin(); at != labels_.rend() && at->first >= version; ++at) {
      if (at->first == version) return at->second;
    }
    return {};
  }

  // The newest version that has `label`; 0: none that is remembered.
  Version Newest(const std::string& label) const {
    for (auto at = labels_.rbegin(); at != labels_.rend(); ++at) {
      if (at->second == label) return at->first;
    }
    return 0;
  }

 private:
  std::deque<std::pair<Version, std::string>> labels_;  // versions rise
};

}  // namespace lockstep::run
