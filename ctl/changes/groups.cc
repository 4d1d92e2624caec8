#include "ctl/changes/groups.h"

#include <algorithm>

#include "common/base/text.h"

namespace lockstep::ctl {
namespace {

// The first `numbers` numbers of the tensor's name, and the words up to the last of them.
GroupKey Prefix(const v1::TensorChange& tensor, size_t numbers) {
  const std::string& kind = tensor.kind();
  const size_t count = std::min<size_t>(numbers, static_cast<size_t>(tensor.indices_size()));
  if (count == 0) return {kind, {}};
  size_t end = 0;
  for (size_t i = 0; i < count; ++i) end = kind.find('*', end) + 1;
  return {kind.substr(0, end), {tensor.indices().begin(), tensor.indices().begin() + static_cast<int>(count)}};
}

}  // namespace

void GroupChange::Add(const v1::Change& change) {
  ++tensors;
  unchanged += change.changed() == 0 && change.elements() > 0 ? 1 : 0;
  elements += change.elements();
  changed += change.changed();
  nonfinite += change.nonfinite();
  squares += change.norm() * change.norm();
  largest = std::max(largest, change.largest());
}

GroupKey KeyOf(const v1::TensorChange& tensor, GroupBy by) {
  switch (by) {
    case GroupBy::kVersion:
      return {};
    case GroupBy::kKind:
      return {tensor.kind(), {}};
    case GroupBy::kLayer:
      return Prefix(tensor, 1);
    case GroupBy::kExpert:
      return Prefix(tensor, 2);
    case GroupBy::kTensor:
      break;
  }
  return {tensor.kind(), {tensor.indices().begin(), tensor.indices().end()}};
}

std::string NameOf(const GroupKey& key) {
  std::string name;
  size_t number = 0;
  for (const char c : key.first) {
    if (c == '*' && number < key.second.size()) {
      name += Cat(key.second[number++]);
    } else {
      name.push_back(c);
    }
  }
  return name;
}

std::map<GroupKey, GroupChange> Group(const v1::VersionChanges& changes, GroupBy by) {
  std::map<GroupKey, GroupChange> groups;
  for (const v1::TensorChange& tensor : changes.tensors()) groups[KeyOf(tensor, by)].Add(tensor.change());
  return groups;
}

}  // namespace lockstep::ctl
