#include "common/changes/version_changes_proto.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep::changes {
namespace {

v1::Change ChangeOf(uint64_t elements, const TensorChange& counted) {
  v1::Change change;
  change.set_elements(elements);
  change.set_changed(counted.elements);
  change.set_nonfinite(static_cast<uint64_t>(std::max<int64_t>(counted.nonfinite, 0)));
  change.set_norm(std::min(std::sqrt(counted.squares), std::numeric_limits<double>::max()));
  change.set_largest(counted.largest);
  return change;
}

// Parts of the name that are numbers say which layer and which expert; the others, of which kind the tensor is.
void PlaceByName(v1::TensorChange& tensor) {
  std::string_view rest = tensor.name();
  while (true) {
    const std::string_view part = rest.substr(0, rest.find('.'));
    const bool is_number =
        !part.empty() && part.size() <= 18 && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    if (is_number) tensor.add_indices(std::stoull(std::string(part)));
    tensor.mutable_kind()->append(is_number ? "*" : part);
    if (part.size() == rest.size()) return;
    tensor.mutable_kind()->push_back('.');
    rest.remove_prefix(part.size() + 1);
  }
}

}  // namespace

v1::Change SumOf(const VersionChanges& changes) {
  return ChangeOf(changes.elements, changes.all);
}

v1::VersionChanges ToProto(const model::ModelLayout& layout, const RunId& run, const std::string& label,
                           const VersionChanges& changes) {
  v1::VersionChanges out;
  out.mutable_version()->set_run(ToBytes(run));
  out.mutable_version()->set_version(changes.version);
  out.set_base(changes.base);
  out.set_label(label);
  *out.mutable_all() = SumOf(changes);
  out.set_unchanged_tensors(changes.unchanged_tensors);
  for (size_t i = 0; i < changes.tensors.size(); ++i) {
    v1::TensorChange& tensor = *out.add_tensors();
    tensor.set_name(layout.tensors()[i].name);
    PlaceByName(tensor);
    *tensor.mutable_change() = ChangeOf(ElementsOf(layout, i), changes.tensors[i]);
  }
  return out;
}

}  // namespace lockstep::changes
