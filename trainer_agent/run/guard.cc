#include "trainer_agent/run/guard.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/text.h"

namespace lockstep::run {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostNamed = 4;

Status Bad(std::string_view what) {
  return {ErrorCode::kBadData, Cat("guard: ", what)};
}

bool IsShare(const Json& value) {
  return value.is_number() && value.get<double>() >= 0 && value.get<double>() <= 1;
}

// "a, b, c, d and 3 others": the tensors of which `size` is more than 0, those with most first.
std::string Names(const model::ModelLayout& layout, const changes::VersionChanges& changes,
                  const std::function<double(const changes::TensorChange&)>& size) {
  std::vector<size_t> tensors;
  for (size_t tensor = 0; tensor < changes.tensors.size(); ++tensor) {
    if (size(changes.tensors[tensor]) > 0) tensors.push_back(tensor);
  }
  std::ranges::stable_sort(tensors, std::ranges::greater(),
                           [&](size_t tensor) { return size(changes.tensors[tensor]); });
  std::string names;
  for (size_t i = 0; i < std::min(tensors.size(), kMostNamed); ++i) {
    names += Cat(names.empty() ? "" : ", ", layout.tensors()[tensors[i]].name);
  }
  if (tensors.size() > kMostNamed) names += Cat(" and ", tensors.size() - kMostNamed, " others");
  return names;
}

}  // namespace

Result<Guard> ReadGuard(std::string_view text) {
  Guard guard;
  const Json json = text.size() > kMaxGuardText ? Json() : Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Bad("it is no JSON object, or a long one");
  for (const auto& [key, value] : json.items()) {
    if (key == "nonfinite" && (value == "refuse" || value == "count")) {
      guard.refuse_nonfinite = value == "refuse";
    } else if (key == "density" && value.is_array() && value.size() == 2 && IsShare(value[0]) && IsShare(value[1]) &&
               value[0] <= value[1]) {
      guard.least_density = value[0];
      guard.most_density = value[1];
    } else if (key == "largest_step" && value.is_number() && value.get<double>() >= 0) {
      guard.largest_step = value;
    } else {
      return Bad(Cat("\"", CleanText(key, 64), "\" is not known, or has a value that it cannot have"));
    }
  }
  return guard;
}

std::string NamesOfNonfinite(const model::ModelLayout& layout, const changes::VersionChanges& changes) {
  return Names(layout, changes,
               [](const changes::TensorChange& change) { return static_cast<double>(change.nonfinite); });
}

Status CheckGuard(const Guard& guard, const model::ModelLayout& layout, const changes::VersionChanges& changes) {
  const changes::TensorChange& all = changes.all;
  if (guard.refuse_nonfinite && all.nonfinite > 0) {
    return Bad(Cat(all.nonfinite, " elements are NaN or Inf, in ", NamesOfNonfinite(layout, changes)));
  }
  if (changes.base == 0) return OkStatus();
  const uint64_t elements = changes.elements;
  const double density = elements == 0 ? 0 : static_cast<double>(all.elements) / static_cast<double>(elements);
  if (density < guard.least_density || density > guard.most_density) {
    const std::string most = Names(
        layout, changes, [](const changes::TensorChange& change) { return static_cast<double>(change.elements); });
    return Bad(Cat(all.elements, " of ", elements, " elements changed, a share of ", density, ", which is not within ",
                   guard.least_density, " to ", guard.most_density, most.empty() ? "" : Cat("; most in ", most)));
  }
  if (all.largest > guard.largest_step) {
    const auto size = [&](const changes::TensorChange& change) {
      return change.largest > guard.largest_step ? change.largest : 0;
    };
    return Bad(Cat("an element changed by ", all.largest, ", more than ", guard.largest_step, ", in ",
                   Names(layout, changes, size)));
  }
  return OkStatus();
}

}  // namespace lockstep::run
