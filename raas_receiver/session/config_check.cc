#include "raas_receiver/session/config_check.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/text.h"
#include "common/os/file.h"
#include "common/telemetry/log.h"

namespace lockstep::session {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxConfigBytes = uint64_t{1} << 20;
// The embedding tensors of families that give them the shape [vocab_size, hidden_size].
constexpr std::string_view kEmbeddings[] = {"model.embed_tokens.weight", "model.language_model.embed_tokens.weight",
                                            "language_model.model.embed_tokens.weight"};

// 0 for none.
uint64_t SizeOf(const Json& config, const char* key) {
  const auto found = config.find(key);
  return found != config.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

}  // namespace

std::string ConfigMismatch(std::string_view config, const model::ModelLayout& layout) {
  const Json whole = Json::parse(config, nullptr, /*allow_exceptions=*/false);
  if (!whole.is_object()) return "";
  const auto text = whole.find("text_config");
  const Json& sizes = text != whole.end() && text->is_object() ? *text : whole;
  const uint64_t rows = SizeOf(sizes, "vocab_size");
  const uint64_t columns = SizeOf(sizes, "hidden_size");
  if (rows == 0 || columns == 0) return "";
  for (const model::TensorMeta& tensor : layout.tensors()) {
    const bool embedding = std::count(std::begin(kEmbeddings), std::end(kEmbeddings), tensor.name) > 0;
    if (!embedding || tensor.shape.size() != 2 || (tensor.shape[0] == rows && tensor.shape[1] == columns)) continue;
    return Cat("vocab_size is ", rows, " and hidden_size ", columns, ", but tensor \"", tensor.name, "\" is [",
               tensor.shape[0], ", ", tensor.shape[1], "]; give the model's own config.json");
  }
  return "";
}

void WarnOfConfig(const std::string& model, const std::string& directory, const model::ModelLayout& layout) {
  const std::string path = directory + "/config.json";
  const Result<std::string> config = os::ReadFile(path, kMaxConfigBytes);
  const std::string mismatch = config.ok() ? ConfigMismatch(*config, layout) : "";
  if (mismatch.empty()) return;
  telemetry::Log(telemetry::LogLevel::kWarn, "config_differs", {{"model", model}, {"path", path}, {"error", mismatch}});
}

}  // namespace lockstep::session
