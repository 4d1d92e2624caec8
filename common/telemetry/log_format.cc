#include "common/telemetry/log_format.h"

#include <array>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "common/base/text.h"

namespace lockstep::telemetry {
namespace {

using Json = nlohmann::ordered_json;

// RFC 3339, UTC, milliseconds.
std::string Timestamp(std::chrono::system_clock::time_point time) {
  const auto milliseconds = std::chrono::floor<std::chrono::milliseconds>(time.time_since_epoch()).count();
  const std::time_t seconds = milliseconds / 1000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  std::array<char, 32> date{};
  std::strftime(date.data(), date.size(), "%Y-%m-%dT%H:%M:%S", &utc);
  std::array<char, 8> fraction{};
  std::snprintf(fraction.data(), fraction.size(), ".%03dZ", static_cast<int>(milliseconds % 1000));
  return Cat(date.data(), fraction.data());
}

Json ToJson(const Field::Value& value) {
  return std::visit([](const auto& held) { return Json(held); }, value);
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string ToText(const Field::Value& value) {
  const auto* text = std::get_if<std::string>(&value);
  if (text == nullptr) return Dump(ToJson(value));
  bool is_word = !text->empty();
  for (const char c : *text) is_word = is_word && c > ' ' && c <= '~' && c != '"' && c != '=' && c != '\\';
  return is_word ? *text : Dump(ToJson(value));
}

}  // namespace

std::string_view LevelName(LogLevel level) {
  constexpr std::string_view kNames[] = {"debug", "info", "warn", "error"};
  return kNames[static_cast<size_t>(level)];
}

std::string FormatJson(const LogRecord& record) {
  Json line = {{"ts", Timestamp(record.time)}, {"level", LevelName(record.level)}};
  if (!record.daemon.empty()) line["daemon"] = record.daemon;
  line["event"] = record.event;
  for (const Field& field : record.fields) line[std::string(field.name)] = ToJson(field.value);
  return Dump(line);
}

std::string FormatText(const LogRecord& record) {
  std::string level(LevelName(record.level));
  for (char& c : level) c = static_cast<char>(std::toupper(c));
  level.resize(5, ' ');
  std::string line = Cat(Timestamp(record.time), " ", level, " ", record.event);
  for (const Field& field : record.fields) line += Cat(" ", field.name, "=", ToText(field.value));
  return line;
}

}  // namespace lockstep::telemetry
