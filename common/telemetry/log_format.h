// Internal to common/telemetry: how a log record looks.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>

#include "common/telemetry/log.h"

namespace lockstep::telemetry {

struct LogRecord {
  std::chrono::system_clock::time_point time;
  LogLevel level;
  std::string_view daemon;  // empty: not shown
  std::string_view event;
  std::span<const Field> fields;
};

// One JSON object, no line break. Text that is not UTF-8 is repaired.
std::string FormatJson(const LogRecord& record);

// "2025-03-01T12:00:00.123Z INFO  event name=value name="two words"". Values are quoted where they would not be one
// word.
std::string FormatText(const LogRecord& record);

}  // namespace lockstep::telemetry
