#include "common/config/config_table.h"

#include "common/base/text.h"
#include "common/config/config_values.h"

namespace lockstep::config {

std::string ConfigTable::Print() const {
  if (!is_table_) return QuoteToml(text_);
  std::string pairs;
  for (const auto& [key, value] : values_) pairs += Cat(pairs.empty() ? "" : ", ", key, " = ", QuoteToml(value));
  return Cat("{", pairs, "}");
}

}  // namespace lockstep::config
