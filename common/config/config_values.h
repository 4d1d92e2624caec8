// Internal to common/config: text to values and values to TOML literals.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace lockstep::config {

// All answer kBadData, quoting the text, when it does not fit.
Result<uint64_t> ParseUnsigned(std::string_view text);  // "262144", "256KiB", "2G"
Result<bool> ParseBool(std::string_view text);          // true, false, 1, 0, yes, no, on, off

Result<std::chrono::milliseconds> ParseTime(std::string_view text);  // "250ms", "30s", "15m", "2h", "7d", "0"

std::string NumberToml(uint64_t number);       // as a text where TOML has no such number
std::string QuoteToml(std::string_view text);  // without passwords: to be shown
std::string QuoteToml(const std::vector<std::string>& list);

// "a,b" -> {"a", "b"}; the empty text is the empty list.
std::vector<std::string> SplitCommas(std::string_view text);

}  // namespace lockstep::config
