// Structured logs on stderr: an event's stable snake_case name and its fields.
//
// On a terminal a line of text, otherwise one JSON object a line:
//   {"ts":"2025-03-01T12:00:00.123Z","level":"info","daemon":"trainer_agent","event":"version_committed",
//    "model":"actor",...}
// WARN: degraded but working. ERROR: an operation failed. Thread-safe; a line is never torn.
//
// A daemon's threads do not wait for stderr: lines wait for it in a queue of 4096, of which the oldest go when there is
// no room. How many is logged once there is (`log_lines_dropped`).
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/status.h"

namespace lockstep::telemetry {

enum class LogLevel { kDebug, kInfo, kWarn, kError };
std::string_view LevelName(LogLevel level);  // "warn"

// One named value. Names are the field's words: model, run, version, bytes, duration_s.
struct Field {
  using Value = std::variant<bool, int64_t, uint64_t, double, std::string>;

  Field(std::string_view name, bool value) : name(name), value(value) {}
  Field(std::string_view name, std::signed_integral auto value) : name(name), value(int64_t{value}) {}
  Field(std::string_view name, std::unsigned_integral auto value) : name(name), value(uint64_t{value}) {}
  Field(std::string_view name, std::floating_point auto value) : name(name), value(double{value}) {}
  Field(std::string_view name, std::string value) : name(name), value(std::move(value)) {}
  Field(std::string_view name, std::string_view value) : name(name), value(std::string(value)) {}
  Field(std::string_view name, const char* value) : name(name), value(std::string(value)) {}

  std::string_view name;  // outlives the call that logs it
  Value value;
};

// A daemon's log: to be called before its threads start, and after signals are blocked, for the queue has a thread.
// Without this call, info and above is logged as text, by the thread that calls. `level`: debug, info, warn or error;
// `format`: auto, text or json, where auto is text on a terminal. kConfig, naming the value, for anything else.
Status InitLogging(std::string_view daemon, std::string_view level, std::string_view format);

// Waits until what was logged has been written, a second at most: before the process ends.
void FlushLog();

// May be called at any time. kConfig for an unknown level.
Status SetLogLevel(std::string_view level);

void Log(LogLevel level, std::string_view event, std::initializer_list<Field> fields = {});

// With the fields error (the status' label) and message. REQUIRES !status.ok().
void LogWarn(std::string_view event, const Status& status, std::initializer_list<Field> fields = {});
void LogError(std::string_view event, const Status& status, std::initializer_list<Field> fields = {});

// How often what is logged as a warning or error has happened in this process. A line with a field `times` counts as
// often.
struct EventCount {
  std::string event;
  LogLevel level;
  uint64_t times = 0;
};
std::vector<EventCount> EventCounts();

}  // namespace lockstep::telemetry
