#include "export_plugin/plan/sheet_reader.h"

#include <algorithm>
#include <limits>

#include "common/base/text.h"
#include "common/model/layout.h"

namespace lockstep {
namespace {

constexpr size_t kMaxDepth = 64;

// How deep arrays and objects are nested: writing JSON recurses, so a hostile depth must not get that far.
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

Status CheckName(std::string_view name, const SheetPath& path) {
  // The parser has already refused what is not UTF-8.
  const auto is_control = [](char c) { return static_cast<uint8_t>(c) < 0x20 || c == 0x7f; };
  if (name.empty() || name.size() > kMaxTensorName || std::any_of(name.begin(), name.end(), is_control)) {
    return path.Bad(Cat("must be 1 to ", kMaxTensorName, " bytes without control characters"));
  }
  return OkStatus();
}

}  // namespace

std::string SheetPath::ToString() const {
  const std::string before = parent == nullptr ? "" : parent->ToString();
  if (key.empty()) return parent == nullptr ? "" : Cat(before, "[", index, "]");
  return before.empty() ? std::string(key) : Cat(before, ".", key);
}

Status SheetPath::Bad(std::string_view problem) const {
  const std::string where = ToString();
  return {ErrorCode::kBadData, Cat("sheet", where.empty() ? "" : ": ", where, ": ", problem)};
}

Result<SheetJson> ParseJson(std::string_view text, const SheetPath& path) {
  if (DepthOf(text) > kMaxDepth) return path.Bad(Cat("is nested deeper than ", kMaxDepth, " levels"));
  SheetJson json = SheetJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return path.Bad("is not JSON");
  return json;
}

Status ReadValue(const SheetJson& json, const SheetPath& path, bool& value) {
  if (!json.is_boolean()) return path.Bad("must be true or false");
  value = json.get<bool>();
  return OkStatus();
}

Status ReadValue(const SheetJson& json, const SheetPath& path, uint32_t& value) {
  if (!json.is_number_unsigned() || json.get<uint64_t>() > std::numeric_limits<uint32_t>::max()) {
    return path.Bad("must be a whole number of 32 bits, not negative");
  }
  value = json.get<uint32_t>();
  return OkStatus();
}

Status ReadValue(const SheetJson& json, const SheetPath& path, std::string& name) {
  if (!json.is_string()) return path.Bad("must be a string");
  const auto& text = json.get_ref<const std::string&>();
  LS_RETURN_IF_ERROR(CheckName(text, path));
  name = text;
  return OkStatus();
}

Status ReadValue(const SheetJson& json, const SheetPath& path, DType& value) {
  if (!json.is_string()) return path.Bad("must be a string, a dtype as safetensors names it");
  const auto& text = json.get_ref<const std::string&>();
  const DTypeInfo* info = FindDType(text);
  if (info == nullptr) return path.Bad(Cat("unknown dtype \"", CleanText(text, 100), "\""));
  if (info->bits % 8 != 0) return path.Bad(Cat(text, " packs several elements into a byte, which no plan can cut"));
  value = info->dtype;
  return OkStatus();
}

Status ReadValue(const SheetJson& json, const SheetPath& path, Extents& value) {
  LS_RETURN_IF_ERROR(CheckArray(json, path, kMaxTensorRank));
  value.clear();
  value.reserve(json.size());
  uint64_t elements = 1;  // of the dimensions that are not 0
  for (const SheetJson& dim : json) {
    if (!dim.is_number_unsigned()) return path.Bad("must be whole numbers, not negative");
    value.push_back(dim.get<uint64_t>());
    if (value.back() == 0) continue;
    if (value.back() > kMaxDataBytes / elements) return path.Bad("is larger than any tensor can be");
    elements *= value.back();
  }
  return OkStatus();
}

Status CheckArray(const SheetJson& json, const SheetPath& path, size_t limit) {
  if (!json.is_array()) return path.Bad("must be an array");
  if (json.size() > limit) return path.Bad(Cat("has ", json.size(), " elements; the limit is ", limit));
  return OkStatus();
}

Result<ObjectReader> ObjectReader::Open(const SheetJson& json, const SheetPath& path) {
  if (!json.is_object()) return path.Bad("must be an object");
  return ObjectReader(&json, &path);
}

const SheetJson* ObjectReader::Find(std::string_view key) {
  asked_[asked_count_++] = key;
  const auto member = json_->find(key);
  if (member == json_->end()) return nullptr;
  ++found_;
  return &*member;
}

Result<const SheetJson*> ObjectReader::Need(std::string_view key) {
  const SheetJson* member = Find(key);
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

}  // namespace lockstep
