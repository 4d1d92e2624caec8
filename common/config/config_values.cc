#include "common/config/config_values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <limits>
#include <span>
#include <utility>

#include "common/base/text.h"
#include "common/config/config.h"

namespace lockstep::config {
namespace {

Status Bad(std::string_view text, std::string_view wanted) {
  return {ErrorCode::kBadData, Cat("'", CleanText(text, 200), "' is not ", wanted)};
}

using Factor = std::pair<std::string_view, uint64_t>;  // of a suffix

constexpr std::array<Factor, 9> kSizes = {{
    {"", 1},
    {"K", 1'000},
    {"M", 1'000'000},
    {"G", 1'000'000'000},
    {"T", 1'000'000'000'000},
    {"KiB", uint64_t{1} << 10},
    {"MiB", uint64_t{1} << 20},
    {"GiB", uint64_t{1} << 30},
    {"TiB", uint64_t{1} << 40},
}};
constexpr std::array<Factor, 5> kTimes = {
    {{"d", 86'400'000}, {"h", 3'600'000}, {"m", 60'000}, {"s", 1000}, {"ms", 1}}};  // in milliseconds

// A whole number and one of `factors`' suffixes, at most `most`.
Result<uint64_t> ParseWithFactor(std::string_view text, std::span<const Factor> factors, uint64_t most,
                                 std::string_view too_much, std::string_view wanted) {
  uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  const std::string_view suffix(stop, static_cast<size_t>(end - stop));
  const auto factor = std::ranges::find(factors, suffix, &Factor::first);
  if (error == std::errc::result_out_of_range) return Bad(text, too_much);
  if (error != std::errc() || factor == factors.end()) return Bad(text, wanted);
  if (number > most / factor->second) return Bad(text, too_much);
  return number * factor->second;
}

}  // namespace

Result<uint64_t> ParseUnsigned(std::string_view text) {
  return ParseWithFactor(text, kSizes, std::numeric_limits<uint64_t>::max(), "below 2^64",
                         "a whole number with an optional K, M, G, T, KiB, MiB, GiB or TiB");
}

Result<std::chrono::milliseconds> ParseTime(std::string_view text) {
  if (text == "0") return std::chrono::milliseconds(0);
  constexpr uint64_t kMost = 100'000ull * 86'400'000;  // so that it can be added to any clock
  LS_ASSIGN_OR_RETURN(const uint64_t milliseconds, ParseWithFactor(text, kTimes, kMost, "at most 100000d",
                                                                   "a time, such as 250ms, 30s, 15m, 2h or 7d"));
  return std::chrono::milliseconds(milliseconds);
}

std::string TimeText(std::chrono::milliseconds time) {
  const auto count = static_cast<uint64_t>(time.count());
  if (count == 0) return "0";
  for (const auto& [suffix, factor] : kTimes) {
    if (count % factor == 0) return Cat(count / factor, suffix);
  }
  return Cat(count, "ms");
}

Result<bool> ParseBool(std::string_view text) {
  for (const std::string_view yes : {"true", "1", "yes", "on"}) {
    if (text == yes) return true;
  }
  for (const std::string_view no : {"false", "0", "no", "off"}) {
    if (text == no) return false;
  }
  return Bad(text, "true or false");
}

std::string NumberToml(uint64_t number) {
  const bool fits = number <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return fits ? Cat(number) : QuoteToml(Cat(number));
}

std::string QuoteToml(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : WithoutPasswords(text)) {
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04x", static_cast<unsigned>(c));
      quoted += escape.data();
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string QuoteToml(const std::vector<std::string>& list) {
  std::string quoted;
  for (const std::string& item : list) quoted += (quoted.empty() ? "" : ", ") + QuoteToml(item);
  return "[" + quoted + "]";
}

std::vector<std::string> SplitCommas(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    parts.emplace_back(text.substr(0, comma));
    text = comma == std::string_view::npos ? "" : text.substr(comma + 1);
  }
  return parts;
}

}  // namespace lockstep::config
