#include "ctl/output/json.h"

namespace lockstep::ctl {

Json ToJson(const Status& failed) {
  return {{"error", failed.message()}, {"code", Label(failed.code())}};
}

Json WithoutAges(Json json) {
  if (json.is_object()) {
    for (const char* name : {"now_unix_ns", "seconds_ago", "gone_seconds", "scrubbed_bytes"}) json.erase(name);
  }
  for (Json& entry : json) {
    if (entry.is_structured()) entry = WithoutAges(std::move(entry));
  }
  return json;
}

Json ToJson(const model::ModelLayout& layout) {
  Json tensors = Json::array();
  for (size_t i = 0; i < layout.tensors().size(); ++i) {
    const model::TensorMeta& tensor = layout.tensors()[i];
    tensors.push_back({{"name", tensor.name},
                       {"dtype", model::FindDType(tensor.dtype)->name},
                       {"shape", tensor.shape},
                       {"offset", tensor.offset},
                       {"bytes", layout.tensor_bytes(i)}});
  }
  Json attachments = Json::array();
  for (const auto& [name, text] : layout.attachments()) {
    attachments.push_back({{"name", name}, {"bytes", text.size()}});
  }
  return {{"digest", ToHex(layout.digest())},    {"data_bytes", layout.data_bytes()},
          {"block_bytes", layout.block_bytes()}, {"blocks", layout.block_count()},
          {"tensors", std::move(tensors)},       {"attachments", std::move(attachments)}};
}

}  // namespace lockstep::ctl
