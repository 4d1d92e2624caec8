#include "common/config/config_table.h"

#include "common/base/text.h"
#include "common/config/config_values.h"

namespace lockstep::config {

Status ConfigTable::Take(std::string_view key, std::string* target) {
  const auto found = values_.find(key);
  if (found == values_.end()) return OkStatus();
  taken_.insert(found->first);
  *target = found->second;
  return OkStatus();
}

Status ConfigTable::Take(std::string_view key, uint64_t* target) {
  return TakeParsed(key, target, ParseUnsigned);
}

Status ConfigTable::Take(std::string_view key, std::chrono::milliseconds* target) {
  return TakeParsed(key, target, ParseTime);
}

template <typename T, typename ParseFn>
Status ConfigTable::TakeParsed(std::string_view key, T* target, ParseFn parse) {
  std::string text;
  LS_RETURN_IF_ERROR(Take(key, &text));
  if (!taken_.contains(key)) return OkStatus();
  const Result<T> value = parse(text);
  if (!value.ok()) return {ErrorCode::kConfig, Cat(written_as_, ": key '", key, "': ", value.status().message())};
  *target = *value;
  return OkStatus();
}

Status ConfigTable::CheckAllTaken() const {
  for (const auto& [key, value] : values_) {
    if (!taken_.contains(key))
      return {ErrorCode::kConfig, Cat(written_as_, ": unknown key '", CleanText(key, 200), "'")};
  }
  return OkStatus();
}

std::string ConfigTable::Print() const {
  if (!is_table_) return QuoteToml(text_);
  std::string pairs;
  for (const auto& [key, value] : values_) pairs += Cat(pairs.empty() ? "" : ", ", key, " = ", QuoteToml(value));
  return Cat("{", pairs, "}");
}

}  // namespace lockstep::config
