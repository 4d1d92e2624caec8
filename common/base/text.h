// Small text helpers for messages people read.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>

namespace lockstep {

// Concatenates its arguments as operator<< prints them.
template <typename... Args>
std::string Cat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return std::move(out).str();
}

// Bytes of the UTF-8 character that `text` starts with; 0 when it starts with none (malformed, overlong, surrogate,
// empty).
size_t Utf8Length(std::string_view text);

// Text from another process, fit for messages, protos and terminals: malformed UTF-8 and control characters other than
// line breaks and tabs become '?', and the whole is cut, between characters, to `max_bytes`.
std::string CleanText(std::string_view text, size_t max_bytes = 4096);

// Text with URLs that a user wrote, fit for logs and errors: in each word "***" stands for what may be a user and a
// password, from "://", or else from the word's start, to its last '@'.
std::string WithoutPasswords(std::string_view text);

// The first of `text`'s '|'-separated parts; `text` loses it and its separator.
std::string_view NextPart(std::string_view& text);

// Nanoseconds since 1970 -> "2025-03-01 12:00:00 UTC".
std::string UtcText(int64_t unix_ns);

// 1536 -> "1.5 KiB".
std::string HumanBytes(uint64_t bytes);

}  // namespace lockstep
