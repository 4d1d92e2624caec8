#include "common/derive/modules.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "common/base/text.h"
#include "common/model/module_names.h"

namespace lockstep::derive {
namespace {

using model::DType;

constexpr std::string_view kLayers = "layers.";
// Where the decoder is, in models of text and in those with other parts.
constexpr std::array<std::string_view, 4> kDecoders = {"model.", "model.language_model.", "language_model.model.",
                                                       "language_model."};
// Of these the result is a choice or a gate, which a rounded weight would flip, or they are too small to matter.
constexpr std::array<std::string_view, 6> kNeverTaken = {"gate",       "router",    "shared_expert_gate",
                                                         "in_proj_ba", "in_proj_a", "in_proj_b"};

std::string_view LastOf(std::string_view module) {
  return module.substr(module.rfind('.') + 1);
}

template <typename List>
bool Contains(const List& list, std::string_view one) {
  return std::find(list.begin(), list.end(), one) != list.end();
}

// The layer of the decoder that the module is in.
std::optional<uint64_t> LayerOf(std::string_view module) {
  for (const std::string_view decoder : kDecoders) {
    if (!module.starts_with(decoder)) continue;
    const std::string_view rest = module.substr(decoder.size());
    if (!rest.starts_with(kLayers)) continue;
    uint64_t layer = 0;
    const char* const end = rest.data() + rest.size();
    const auto [stop, error] = std::from_chars(rest.data() + kLayers.size(), end, layer);
    if (error == std::errc() && stop != end && *stop == '.') return layer;
  }
  return std::nullopt;
}

// The layers that config.json gives the decoder.
uint64_t LayersIn(const Json& config) {
  for (const Json* const object : {&config, config.contains("text_config") ? &config["text_config"] : nullptr}) {
    if (object == nullptr || !object->is_object() || !object->contains("num_hidden_layers")) continue;
    const Json& layers = (*object)["num_hidden_layers"];
    if (layers.is_number_unsigned()) return layers.get<uint64_t>();
  }
  return ~uint64_t{0};
}

}  // namespace

bool IsFloat(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32;
}

Result<Selection> Selection::Create(const Json& config, const Json* left_out) {
  Selection selection;
  selection.layers_ = LayersIn(config);
  if (left_out == nullptr || left_out->is_null()) return selection;
  if (!left_out->is_array()) return Status(ErrorCode::kBadData, "its list of modules left out is no array");
  for (const Json& name : *left_out) {
    const auto* const text = name.get_ptr<const std::string*>();
    if (text == nullptr || text->empty() || text->find_first_of(":*") != std::string::npos) {
      return Status(ErrorCode::kBadData,
                    Cat("its list of modules left out has ", CleanText(name.dump()), "; give exact names of modules"));
    }
    selection.left_out_.push_back(*text);
  }
  std::sort(selection.left_out_.begin(), selection.left_out_.end());
  return selection;
}

bool Selection::Reaches(std::string_view module) const {
  const auto layer = LayerOf(module);
  if (!layer || *layer >= layers_) return false;
  // A module is left out with all that is in it.
  for (size_t end = module.size(); end != std::string_view::npos; end = module.rfind('.', end - 1)) {
    if (std::binary_search(left_out_.begin(), left_out_.end(), module.substr(0, end), std::less<>())) return false;
  }
  return true;
}

bool Selection::Takes(const model::TensorMeta& tensor) const {
  const auto module = model::ModuleOf(tensor);
  return module && tensor.shape.size() == 2 && tensor.shape[0] > 0 && tensor.shape[1] > 0 && Reaches(*module) &&
         !Contains(kNeverTaken, LastOf(*module));
}

bool Selection::HoldsExperts(const model::TensorMeta& tensor) const {
  return tensor.shape.size() > 2 && tensor.name.find(".experts.") != std::string::npos && Reaches(tensor.name);
}

}  // namespace lockstep::derive
