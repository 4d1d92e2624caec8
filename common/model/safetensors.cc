#include "common/model/safetensors.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "common/base/text.h"

namespace lockstep::model {
namespace {

using Json = nlohmann::json;

Status Bad(const std::string& problem) {
  return {ErrorCode::kBadData, "safetensors header: " + problem};
}

Status BadTensor(const std::string& name, const std::string& problem) {
  return Bad(Cat("tensor \"", CleanText(name, kMaxTensorName), "\" ", problem));
}

bool IsCount(const Json& value) {
  return value.is_number_unsigned();
}

Result<TensorMeta> ParseTensor(const std::string& name, const Json& entry, uint64_t& end) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets") ||
      !entry["dtype"].is_string() || !entry["shape"].is_array() || !entry["data_offsets"].is_array() ||
      entry["data_offsets"].size() != 2 || !IsCount(entry["data_offsets"][0]) || !IsCount(entry["data_offsets"][1])) {
    return BadTensor(name, "lacks a well-formed dtype, shape or data_offsets");
  }
  const auto& dtype = entry["dtype"].get_ref<const std::string&>();
  const DTypeInfo* info = FindDType(dtype);
  if (info == nullptr) return BadTensor(name, Cat("has the unknown dtype \"", CleanText(dtype, 100), "\""));
  TensorMeta tensor{.name = name, .dtype = info->dtype};
  for (const Json& dim : entry["shape"]) {
    if (!IsCount(dim)) return BadTensor(name, "has a dimension that is no count");
    tensor.shape.push_back(dim.get<uint64_t>());
  }
  tensor.offset = entry["data_offsets"][0].get<uint64_t>();
  end = entry["data_offsets"][1].get<uint64_t>();
  LS_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(tensor));
  if (end < tensor.offset || end - tensor.offset != bytes) {
    return BadTensor(name,
                     Cat("has data_offsets [", tensor.offset, ", ", end, "] but its shape takes ", bytes, " bytes"));
  }
  return tensor;
}

// A tensor's name has no control characters, so a quote and a backslash are all that JSON escapes.
template <typename Sink>
void WriteString(std::string_view text, Sink& sink) {
  const auto is_escaped = [](char c) { return c == '"' || c == '\\'; };
  sink("\"");
  auto begin = text.begin();
  for (auto at = begin; (at = std::find_if(at, text.end(), is_escaped)) != text.end(); ++at) {
    sink({begin, at});
    sink("\\");
    begin = at;
  }
  sink({begin, text.end()});
  sink("\"");
}

template <typename Sink>
void WriteNumber(uint64_t number, Sink& sink) {
  char digits[20];
  const auto [end, error] = std::to_chars(std::begin(digits), std::end(digits), number);
  sink({digits, end});
}

// Gives the header's JSON to `sink` piece by piece. By hand: a library's document of it takes a second for 100,000
// tensors.
template <typename Sink>
void WriteJson(const ModelLayout& layout, Sink sink) {
  sink(R"({"__metadata__":{"format":"pt"})");  // transformers refuses a file that does not name its framework
  for (size_t i = 0; i < layout.tensors().size(); ++i) {
    const TensorMeta& tensor = layout.tensors()[i];
    sink(",");
    WriteString(tensor.name, sink);
    sink(R"(:{"dtype":")");
    sink(FindDType(tensor.dtype)->name);
    sink(R"(","shape":[)");
    for (size_t dim = 0; dim < tensor.shape.size(); ++dim) {
      if (dim > 0) sink(",");
      WriteNumber(tensor.shape[dim], sink);
    }
    sink(R"(],"data_offsets":[)");
    WriteNumber(tensor.offset, sink);
    sink(",");
    WriteNumber(tensor.offset + layout.tensor_bytes(i), sink);
    sink("]}");
  }
  sink("}");
}

uint64_t HeaderBytes(const ModelLayout& layout) {
  uint64_t bytes = sizeof(uint64_t);
  WriteJson(layout, [&](std::string_view text) { bytes += text.size(); });
  return (bytes + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
}

Status TakeTensor(const std::string& name, const Json& entry, SafetensorsFile& file, uint64_t& total) {
  uint64_t end = 0;
  LS_ASSIGN_OR_RETURN(TensorMeta tensor, ParseTensor(name, entry, end));
  if (end > file.data_bytes) {
    return BadTensor(name, Cat("ends at byte ", end, " of ", file.data_bytes, ": the file is truncated"));
  }
  total += end - tensor.offset;
  file.tensors.push_back(std::move(tensor));
  return OkStatus();
}

// By offset, tensors without elements before the one that starts where they lie.
bool IsBefore(const TensorMeta& a, const TensorMeta& b) {
  const auto has_elements = [](const TensorMeta& tensor) {
    return std::find(tensor.shape.begin(), tensor.shape.end(), 0) == tensor.shape.end();
  };
  return a.offset != b.offset ? a.offset < b.offset : !has_elements(a) && has_elements(b);
}

// Sizes that add up do not keep tensors from overlapping: then there is a hole elsewhere.
Status CheckBackToBack(const std::vector<TensorMeta>& tensors) {
  uint64_t end = 0;
  for (const TensorMeta& tensor : tensors) {
    if (tensor.offset != end) {
      return BadTensor(tensor.name, Cat("starts at byte ", tensor.offset, ", the tensors before it end at ", end,
                                        tensor.offset < end ? ": they overlap" : ": there is a gap"));
    }
    LS_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(tensor));
    end += bytes;
  }
  return OkStatus();
}

}  // namespace

Bytes SafetensorsHeader(const ModelLayout& layout) {
  const uint64_t bytes = HeaderBytes(layout);
  Bytes header;
  header.reserve(bytes);
  Append(header, bytes - sizeof bytes);
  WriteJson(layout, [&](std::string_view text) { AppendBytes(header, AsBytes(text)); });
  header.resize(bytes, std::byte{' '});
  return header;
}

uint64_t ImageBytes(const ModelLayout& layout) {
  return HeaderBytes(layout) + layout.data_bytes();
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
  SafetensorsFile file;
  file.data_offset = sizeof json_bytes + json_bytes;
  file.data_bytes = file_bytes - file.data_offset;
  uint64_t total = 0;
  Status status;
  std::string name;
  // Each entry is taken as soon as it is parsed, and not kept: a document of 100,000 of them is slow to build.
  const auto take = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth != 1) return true;
    if (event == Json::parse_event_t::key) name = parsed.get<std::string>();
    const bool whole = event == Json::parse_event_t::object_end || event == Json::parse_event_t::array_end ||
                       event == Json::parse_event_t::value;
    if (!whole) return true;
    if (status.ok() && name != "__metadata__") status = TakeTensor(name, parsed, file, total);
    return false;
  };
  const Json json = Json::parse(AsText(text), take, /*allow_exceptions=*/false);
  if (!json.is_object()) return Bad("it is no JSON object");
  LS_RETURN_IF_ERROR(status);
  std::stable_sort(file.tensors.begin(), file.tensors.end(), IsBefore);
  if (total != file.data_bytes)
    return Bad(Cat("its tensors take ", total, " bytes of the ", file.data_bytes, " there are"));
  LS_RETURN_IF_ERROR(CheckBackToBack(file.tensors));
  return file;
}

}  // namespace lockstep::model
