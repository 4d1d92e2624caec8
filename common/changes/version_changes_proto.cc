#include "common/changes/version_changes_proto.h"

#include <algorithm>
#include <cmath>

namespace lockstep::changes {
namespace {

v1::Change ChangeOf(uint64_t elements, const TensorChange& counted) {
  v1::Change change;
  change.set_elements(elements);
  change.set_changed(counted.elements);
  change.set_nonfinite(static_cast<uint64_t>(std::max<int64_t>(counted.nonfinite, 0)));
  change.set_norm(std::sqrt(counted.squares));
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

v1::Change SumOf(const model::ModelLayout& layout, const VersionChanges& changes) {
  uint64_t elements = 0;
  for (size_t tensor = 0; tensor < changes.tensors.size(); ++tensor) elements += ElementsOf(layout, tensor);
  return ChangeOf(elements, Sum(changes));
}

uint64_t UnchangedTensors(const model::ModelLayout& layout, const VersionChanges& changes) {
  uint64_t unchanged = 0;
  for (size_t tensor = 0; changes.base != 0 && tensor < changes.tensors.size(); ++tensor) {
    unchanged += changes.tensors[tensor].elements == 0 && layout.tensor_bytes(tensor) > 0 ? 1 : 0;
  }
  return unchanged;
}

v1::VersionChanges ToProto(const model::ModelLayout& layout, const RunId& run, const std::string& label,
                           const VersionChanges& changes) {
  v1::VersionChanges out;
  out.mutable_version()->set_run(ToBytes(run));
  out.mutable_version()->set_version(changes.version);
  out.set_base(changes.base);
  out.set_label(label);
  *out.mutable_all() = SumOf(layout, changes);
  out.set_unchanged_tensors(UnchangedTensors(layout, changes));
  for (size_t i = 0; i < changes.tensors.size(); ++i) {
    v1::TensorChange& tensor = *out.add_tensors();
    tensor.set_name(layout.tensors()[i].name);
    PlaceByName(tensor);
    *tensor.mutable_change() = ChangeOf(ElementsOf(layout, i), changes.tensors[i]);
  }
  return out;
}

}  // namespace lockstep::changes
