#include "common/telemetry/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "common/base/text.h"
#include "common/telemetry/log_format.h"

namespace lockstep::telemetry {
namespace {

// The process' one logger. `daemon` and `json` are set before threads start; the level is atomic inside spdlog.
struct Logger {
  std::string daemon;
  bool json = false;
  spdlog::logger sink{"lockstep", std::make_shared<spdlog::sinks::stderr_sink_mt>()};

  Logger() { sink.set_pattern("%v"); }
};

Logger& TheLogger() {
  static Logger* const logger = new Logger;  // never destroyed: the last lines may come from static destructors
  return *logger;
}

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                                   spdlog::level::err};
  return kLevels[static_cast<size_t>(level)];
}

void Write(LogLevel level, std::string_view event, std::span<const Field> fields) {
  Logger& logger = TheLogger();
  if (!logger.sink.should_log(SpdlogLevel(level))) return;
  const LogRecord record{std::chrono::system_clock::now(), level, logger.daemon, event, fields};
  logger.sink.log(SpdlogLevel(level), spdlog::string_view_t(logger.json ? FormatJson(record) : FormatText(record)));
}

void LogStatus(LogLevel level, std::string_view event, const Status& status, std::initializer_list<Field> fields) {
  std::vector<Field> all(fields);
  all.emplace_back("error", Label(status.code()));
  all.emplace_back("message", status.message());
  Write(level, event, all);
}

}  // namespace

Status InitLogging(std::string_view daemon, std::string_view level, std::string_view format) {
  if (format != "auto" && format != "text" && format != "json") {
    return {ErrorCode::kConfig, Cat("log format '", format, "' is none of auto, text, json")};
  }
  LS_RETURN_IF_ERROR(SetLogLevel(level));
  Logger& logger = TheLogger();
  logger.daemon = daemon;
  logger.json = format == "json" || (format == "auto" && ::isatty(STDERR_FILENO) == 0);
  return OkStatus();
}

Status SetLogLevel(std::string_view level) {
  for (const LogLevel known : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarn, LogLevel::kError}) {
    if (LevelName(known) != level) continue;
    TheLogger().sink.set_level(SpdlogLevel(known));
    return OkStatus();
  }
  return {ErrorCode::kConfig, Cat("log level '", level, "' is none of debug, info, warn, error")};
}

void Log(LogLevel level, std::string_view event, std::initializer_list<Field> fields) {
  Write(level, event, fields);
}

void LogWarn(std::string_view event, const Status& status, std::initializer_list<Field> fields) {
  LogStatus(LogLevel::kWarn, event, status, fields);
}

void LogError(std::string_view event, const Status& status, std::initializer_list<Field> fields) {
  LogStatus(LogLevel::kError, event, status, fields);
}

}  // namespace lockstep::telemetry
