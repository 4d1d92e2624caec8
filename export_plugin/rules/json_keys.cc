#include "export_plugin/rules/json_keys.h"

#include "common/base/text.h"
#include "export_plugin/rules/family.h"

namespace lockstep::rules {

std::pair<std::string_view, const nlohmann::json*> JsonKeys::Find(std::string_view keys) const {
  while (!keys.empty()) {
    const std::string_view key = NextPart(keys);
    const auto found = object_.find(std::string(key));
    if (found != object_.end() && !found->is_null()) return {key, &*found};
  }
  return {keys, nullptr};
}

void JsonKeys::Refuse(std::string_view key, std::string_view message) {
  if (!status_.ok()) return;
  std::string name(key);
  for (size_t bar = name.find('|'); bar != std::string::npos; bar = name.find('|')) name.replace(bar, 1, " or ");
  status_ = Status(ErrorCode::kBadData, Cat("config.json: ", name, " ", message));
}

uint64_t JsonKeys::Number(std::string_view keys, uint64_t low, uint64_t high) {
  const auto [key, value] = Find(keys);
  if (value == nullptr) {
    Refuse(keys, "is missing");
    return low;
  }
  if (!value->is_number_unsigned() || value->get<uint64_t>() < low || value->get<uint64_t>() > high) {
    Refuse(key, Cat("must be a whole number from ", low, " to ", high));
    return low;
  }
  return value->get<uint64_t>();
}

uint64_t JsonKeys::NumberOr(std::string_view keys, uint64_t otherwise, uint64_t low, uint64_t high) {
  return Has(keys) ? Number(keys, low, high) : otherwise;
}

bool JsonKeys::BoolOr(std::string_view key, bool otherwise) {
  const nlohmann::json* value = Find(key).second;
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) Refuse(key, "must be true or false");
  return value->is_boolean() ? value->get<bool>() : otherwise;
}

std::string JsonKeys::Text(std::string_view keys) {
  const auto [key, value] = Find(keys);
  if (value == nullptr) Refuse(keys, "is missing");
  if (value != nullptr && !value->is_string()) Refuse(key, "must be a string");
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

std::vector<uint64_t> JsonKeys::Numbers(std::string_view key, uint64_t high) {
  const nlohmann::json* value = Find(key).second;
  std::vector<uint64_t> numbers;
  if (value == nullptr) return numbers;
  if (!value->is_array()) Refuse(key, "must be an array");
  if (!value->is_array()) return numbers;
  for (const nlohmann::json& element : *value) {
    if (!element.is_number_unsigned() || element.get<uint64_t>() > high) {
      Refuse(key, Cat("must hold whole numbers up to ", high));
      return numbers;
    }
    numbers.push_back(element.get<uint64_t>());
  }
  return numbers;
}

}  // namespace lockstep::rules
