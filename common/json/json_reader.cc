#include "common/json/json_reader.h"

#include <algorithm>
#include <limits>

#include "common/model/layout.h"

namespace lockstep::json {
namespace {

size_t DepthOf(std::string_view json) {
  size_t depth = 0;
  size_t deepest = 0;
  bool inside_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '"') inside_string = !inside_string;
    if (inside_string) {
      if (c == '\\') ++i;
      continue;
    }
    if (c == '[' || c == '{') deepest = std::max(deepest, ++depth);
    if ((c == ']' || c == '}') && depth > 0) --depth;
  }
  return deepest;
}

}  // namespace

std::string JsonPath::ToString() const {
  if (parent == nullptr) return std::string(key);
  const std::string before = parent->ToString();
  if (key.empty()) return Cat(before, "[", index, "]");
  return Cat(before, parent->parent == nullptr ? ": " : ".", key);
}

Status JsonPath::Bad(std::string_view problem) const {
  return {ErrorCode::kBadData, Cat(ToString(), ": ", problem)};
}

Result<Json> ParseJson(std::string_view text, const JsonPath& document, uint64_t max_bytes) {
  if (text.size() > max_bytes) return document.Bad(Cat("is larger than ", HumanBytes(max_bytes)));
  if (DepthOf(text) > kMaxJsonDepth) return document.Bad(Cat("is nested deeper than ", kMaxJsonDepth, " levels"));
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return document.Bad("is not JSON");
  return json;
}

Status ReadValue(const Json& json, const JsonPath& path, bool& value) {
  if (!json.is_boolean()) return path.Bad("must be true or false");
  value = json.get<bool>();
  return OkStatus();
}

Status ReadValue(const Json& json, const JsonPath& path, uint32_t& value) {
  if (!json.is_number_unsigned() || json.get<uint64_t>() > std::numeric_limits<uint32_t>::max()) {
    return path.Bad("must be a whole number of 32 bits, not negative");
  }
  value = json.get<uint32_t>();
  return OkStatus();
}

Status ReadValue(const Json& json, const JsonPath& path, uint64_t& value) {
  if (!json.is_number_unsigned()) return path.Bad("must be a whole number of 64 bits, not negative");
  value = json.get<uint64_t>();
  return OkStatus();
}

Status ReadValue(const Json& json, const JsonPath& path, std::string& name) {
  if (!json.is_string()) return path.Bad("must be a string");
  const auto& text = json.get_ref<const std::string&>();  // the parser has refused what is not UTF-8
  const auto is_control = [](char c) { return static_cast<uint8_t>(c) < 0x20 || c == 0x7f; };
  if (text.empty() || text.size() > model::kMaxTensorName || std::any_of(text.begin(), text.end(), is_control)) {
    return path.Bad(Cat("must be 1 to ", model::kMaxTensorName, " bytes without control characters"));
  }
  name = text;
  return OkStatus();
}

Status ReadValue(const Json& json, const JsonPath& path, model::DType& value) {
  if (!json.is_string()) return path.Bad("must be a string, a dtype as safetensors names it");
  const auto& text = json.get_ref<const std::string&>();
  const model::DTypeInfo* info = model::FindDType(text);
  if (info == nullptr) return path.Bad(Cat("unknown dtype \"", CleanText(text, 100), "\""));
  if (info->bits % 8 != 0) return path.Bad(Cat(text, " packs several elements into a byte, which no plan can cut"));
  value = info->dtype;
  return OkStatus();
}

Status ReadValue(const Json& json, const JsonPath& path, layout::Extents& value) {
  if (!json.is_array()) return path.Bad("must be an array");
  if (json.size() > model::kMaxTensorRank) {
    return path.Bad(Cat("has ", json.size(), " dimensions; the limit is ", model::kMaxTensorRank));
  }
  value.clear();
  value.reserve(json.size());
  for (const Json& number : json) {
    if (!number.is_number_unsigned()) return path.Bad("must be whole numbers, not negative");
    value.push_back(number.get<uint64_t>());
    if (value.back() > model::kMaxDataBytes) return path.Bad(Cat(value.back(), " is more than any tensor has"));
  }
  return OkStatus();
}

Result<ObjectReader> ObjectReader::Open(const Json& json, const JsonPath& path) {
  if (!json.is_object()) return path.Bad("must be an object");
  return ObjectReader(&json, &path);
}

const Json* ObjectReader::Find(std::string_view key) {
  asked_[asked_count_++] = key;
  const auto member = json_->find(key);
  if (member == json_->end()) return nullptr;
  ++found_;
  return &*member;
}

Result<const Json*> ObjectReader::Need(std::string_view key) {
  const Json* member = Find(key);
  if (member == nullptr) return path_->Bad(Cat("\"", key, "\" is missing"));
  return member;
}

Status ObjectReader::Finish() const {
  if (found_ == json_->size()) return OkStatus();
  const auto end = asked_.begin() + static_cast<std::ptrdiff_t>(asked_count_);
  for (const auto& [key, value] : json_->items()) {
    if (std::find(asked_.begin(), end, key) == end) {
      return path_->Bad(Cat("unknown key \"", CleanText(key, 100), "\""));
    }
  }
  return OkStatus();
}

}  // namespace lockstep::json
