#include "common/model/module_names.h"

#include "common/base/text.h"

namespace lockstep::model {
namespace {

constexpr std::string_view kWeight = ".weight";

}  // namespace

std::optional<std::string_view> ModuleOf(const TensorMeta& tensor) {
  const std::string_view name = tensor.name;
  if (!name.ends_with(kWeight)) return std::nullopt;
  return name.substr(0, name.size() - kWeight.size());
}

std::string FusedModule(std::string_view module) {
  static constexpr struct {
    std::string_view part, whole;
  } kFused[] = {{"q_proj", "qkv_proj"},
                {"k_proj", "qkv_proj"},
                {"v_proj", "qkv_proj"},
                {"gate_proj", "gate_up_proj"},
                {"up_proj", "gate_up_proj"},
                {"w1", "w13"},
                {"w3", "w13"},
                {"q_a_proj", "fused_qkv_a_proj"},
                {"kv_a_proj_with_mqa", "fused_qkv_a_proj"},
                {"in_proj_qkv", "in_proj_qkvz"},
                {"in_proj_z", "in_proj_qkvz"}};
  const std::string_view last = module.substr(module.rfind('.') + 1);
  for (const auto& [part, whole] : kFused) {
    if (part == last) return Cat(module.substr(0, module.size() - last.size()), whole);
  }
  return std::string(module);
}

}  // namespace lockstep::model
