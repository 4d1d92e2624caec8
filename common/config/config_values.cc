#include "common/config/config_values.h"

#include <array>
#include <charconv>
#include <cstdio>
#include <limits>
#include <utility>

#include "common/base/text.h"

namespace lockstep::config {
namespace {

Status Bad(std::string_view text, std::string_view wanted) {
  return {ErrorCode::kBadData, Cat("'", CleanText(text, 200), "' is not ", wanted)};
}

// The factor of a size suffix; 0 for an unknown one.
uint64_t FactorOf(std::string_view suffix) {
  constexpr std::array<std::pair<std::string_view, uint64_t>, 9> kFactors = {{
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
  for (const auto& [name, factor] : kFactors) {
    if (name == suffix) return factor;
  }
  return 0;
}

}  // namespace

Result<uint64_t> ParseUnsigned(std::string_view text) {
  constexpr std::string_view kWanted = "a whole number with an optional K, M, G, T, KiB, MiB, GiB or TiB";
  uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  const uint64_t factor = FactorOf({stop, static_cast<size_t>(end - stop)});
  if (error == std::errc::result_out_of_range) return Bad(text, "below 2^64");
  if (error != std::errc() || factor == 0) return Bad(text, kWanted);
  if (number > std::numeric_limits<uint64_t>::max() / factor) return Bad(text, "below 2^64");
  return number * factor;
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
  for (const char c : text) {
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
