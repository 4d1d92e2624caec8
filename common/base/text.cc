#include "common/base/text.h"

#include <algorithm>
#include <cstdio>
#include <ctime>

namespace lockstep {

size_t Utf8Length(std::string_view text) {
  if (text.empty()) return 0;
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xc2 && lead < 0xe0   ? 2
                        : lead >= 0xe0 && lead < 0xf0 ? 3
                        : lead >= 0xf0 && lead < 0xf5 ? 4
                                                      : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t k = 1; k < length; ++k) {
    if ((static_cast<uint8_t>(text[k]) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates and values past U+10FFFF show in the second byte.
  const auto second = static_cast<uint8_t>(text[1]);
  const bool beyond = (lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
                      (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f);
  return beyond ? 0 : length;
}

std::string CleanText(std::string_view text, size_t max_bytes) {
  std::string clean;
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const auto lead = static_cast<uint8_t>(text[0]);
    const bool control = (lead < 0x20 && lead != '\n' && lead != '\t') || lead == 0x7f;
    const std::string_view next = length == 0 || control ? "?" : text.substr(0, length);
    if (clean.size() + next.size() > max_bytes) break;
    clean += next;
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return clean;
}

std::string WithoutPasswords(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  constexpr std::string_view kScheme = "://";
  std::string shown;
  while (!text.empty()) {
    const bool blank = kBlanks.find(text[0]) != kBlanks.npos;
    const size_t end = blank ? text.find_first_not_of(kBlanks) : text.find_first_of(kBlanks);
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(word.size());
    const size_t at = word.rfind('@');
    const std::string_view before = word.substr(0, at == word.npos ? 0 : at);
    const size_t scheme = before.find(kScheme);
    const size_t user = scheme == before.npos ? 0 : scheme + kScheme.size();
    // Paths may have an '@', and so may user@host of a hook's command.
    const bool has_host = scheme == before.npos ? before.find('/') == before.npos && before.find(':') != before.npos
                                                : !before.substr(user).starts_with('/');
    shown += has_host && at != word.npos ? Cat(word.substr(0, user), "***", word.substr(at)) : std::string(word);
  }
  return shown;
}

std::string_view NextPart(std::string_view& text) {
  const std::string_view part = text.substr(0, text.find('|'));
  text.remove_prefix(std::min(part.size() + 1, text.size()));
  return part;
}

std::string UtcText(int64_t unix_ns) {
  const std::time_t seconds = unix_ns / 1'000'000'000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  (void)std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &utc);
  return text;
}

std::string HumanBytes(uint64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
  return text;
}

}  // namespace lockstep
