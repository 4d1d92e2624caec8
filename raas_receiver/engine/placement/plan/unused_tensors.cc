#include <fnmatch.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "common/base/text.h"
#include "raas_receiver/engine/placement/plan/placement_plan.h"

namespace lockstep::engine {
namespace {

bool Ignores(const RankDescription& rank, const std::string& tensor) {
  return std::ranges::any_of(rank.ignore,
                             [&](const auto& pattern) { return ::fnmatch(pattern.c_str(), tensor.c_str(), 0) == 0; });
}

}  // namespace

Result<std::vector<std::string>> UnusedTensors(const model::ModelLayout& layout,
                                               const std::vector<RankDescription>& ranks, Looked looked) {
  std::unordered_set<std::string_view> taken;
  for (const RankDescription& rank : ranks) {
    for (const EngineParameter& parameter : rank.parameters) {
      for (const Slice& slice : parameter.slices) taken.insert(slice.tensor);
    }
  }
  std::vector<std::string> unused, refused;
  for (const model::TensorMeta& tensor : layout.tensors()) {
    if (taken.contains(tensor.name)) continue;
    const bool ignored = std::ranges::any_of(ranks, [&](const auto& rank) { return Ignores(rank, tensor.name); });
    (ignored || looked == Looked::kSome ? unused : refused).push_back(tensor.name);
  }
  if (refused.empty()) return unused;
  const size_t more = refused.size() - 1;
  return Status(ErrorCode::kBadData,
                Cat("no parameter of the engine takes tensor ", refused[0], " of the model",
                    more == 0 ? "" : Cat(", nor ", more, " others"),
                    ": its configuration is an older one, or ties what the trainer does not; where it is to do "
                    "without, say so by ignore=[\"",
                    refused[0], "\"], which takes patterns"));
}

}  // namespace lockstep::engine
