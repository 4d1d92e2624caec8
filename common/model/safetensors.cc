#include "common/model/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/text.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

Status Bad(const std::string& problem) {
  return {ErrorCode::kBadData, "safetensors header: " + problem};
}

bool IsCount(const Json& value) {
  return value.is_number_unsigned();
}

Result<TensorMeta> ParseTensor(const std::string& name, const Json& entry, uint64_t& end) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets") ||
      !entry["dtype"].is_string() || !entry["shape"].is_array() || !entry["data_offsets"].is_array() ||
      entry["data_offsets"].size() != 2 || !IsCount(entry["data_offsets"][0]) || !IsCount(entry["data_offsets"][1])) {
    return Bad(Cat("tensor \"", name, "\" lacks a well-formed dtype, shape or data_offsets"));
  }
  const auto& dtype = entry["dtype"].get_ref<const std::string&>();
  const DTypeInfo* info = FindDType(dtype);
  if (info == nullptr) return Bad(Cat("tensor \"", name, "\" has the unknown dtype \"", dtype, "\""));
  TensorMeta tensor{.name = name, .dtype = info->dtype};
  for (const Json& dim : entry["shape"]) {
    if (!IsCount(dim)) return Bad(Cat("tensor \"", name, "\" has a dimension that is no count"));
    tensor.shape.push_back(dim.get<uint64_t>());
  }
  tensor.offset = entry["data_offsets"][0].get<uint64_t>();
  end = entry["data_offsets"][1].get<uint64_t>();
  LS_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(tensor));
  if (end < tensor.offset || end - tensor.offset != bytes) {
    return Bad(Cat("tensor \"", name, "\" has data_offsets [", tensor.offset, ", ", end, "] but its shape takes ",
                   bytes, " bytes"));
  }
  return tensor;
}

}  // namespace

Bytes SafetensorsHeader(const ModelLayout& layout) {
  // transformers refuses a file that does not name its framework.
  std::string text = R"({"__metadata__":{"format":"pt"})";
  for (size_t i = 0; i < layout.tensors().size(); ++i) {
    const TensorMeta& tensor = layout.tensors()[i];
    text += Cat(",", Json(tensor.name).dump(), R"(:{"dtype":")", FindDType(tensor.dtype)->name, R"(","shape":)",
                Json(tensor.shape).dump(), R"(,"data_offsets":[)", tensor.offset, ",",
                tensor.offset + layout.tensor_bytes(i), "]}");
  }
  text += "}";
  const size_t unpadded = sizeof(uint64_t) + text.size();
  text.append((kDataAlignment - unpadded % kDataAlignment) % kDataAlignment, ' ');
  Bytes header;
  Append(header, static_cast<uint64_t>(text.size()));
  AppendBytes(header, AsBytes(std::string_view(text)));
  return header;
}

uint64_t ImageBytes(const ModelLayout& layout) {
  return SafetensorsHeader(layout).size() + layout.data_bytes();
}

Result<SafetensorsFile> ParseSafetensors(ByteView head, uint64_t file_bytes) {
  ByteReader reader(head);
  uint64_t json_bytes = 0;
  if (!reader.Take(json_bytes)) return Bad("the file is shorter than 8 bytes");
  if (json_bytes > kMaxSafetensorsHeader || json_bytes > file_bytes - sizeof json_bytes) {
    return Bad(Cat("it claims ", json_bytes, " bytes; the file has ", file_bytes));
  }
  ByteView text;
  if (!reader.TakeBytes(json_bytes, text)) return Bad("truncated");
  const Json json = Json::parse(AsText(text), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Bad("it is no JSON object");
  SafetensorsFile file;
  file.data_offset = sizeof json_bytes + json_bytes;
  file.data_bytes = file_bytes - file.data_offset;
  uint64_t total = 0;
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") continue;
    uint64_t end = 0;
    LS_ASSIGN_OR_RETURN(TensorMeta tensor, ParseTensor(name, entry, end));
    if (end > file.data_bytes) {
      return Bad(Cat("tensor \"", name, "\" ends at byte ", end, " of ", file.data_bytes, ": the file is truncated"));
    }
    total += end - tensor.offset;
    file.tensors.push_back(std::move(tensor));
  }
  std::stable_sort(file.tensors.begin(), file.tensors.end(),
                   [](const TensorMeta& a, const TensorMeta& b) { return a.offset < b.offset; });
  if (total != file.data_bytes)
    return Bad(Cat("its tensors take ", total, " bytes of the ", file.data_bytes, " there are"));
  return file;
}

}  // namespace lockstep
