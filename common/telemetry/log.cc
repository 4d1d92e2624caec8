#include "common/telemetry/log.h"

#include <spdlog/async.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/text.h"
#include "common/telemetry/log_format.h"

namespace lockstep::telemetry {
namespace {

constexpr size_t kWaitingLines = 4096;
constexpr std::chrono::seconds kFlushTime{1};
constexpr char kPattern[] = "%v";

using Stderr = spdlog::sinks::stderr_sink_mt;

// Writes the lines of a queue to stderr. A full queue drops its oldest lines, and this class logs how many.
class QueuedStderr final : public Stderr {
 public:
  explicit QueuedStderr(std::shared_ptr<spdlog::details::thread_pool> queue) : queue_(std::move(queue)) {}

  void log(const spdlog::details::log_msg& line) override;
  uint64_t gone() const { return written_ + queue_->overrun_counter(); }  // lines; each was written or dropped

 private:
  const std::shared_ptr<spdlog::details::thread_pool> queue_;
  std::atomic<uint64_t> written_ = 0;
  size_t said_ = 0;  // of those dropped
};

// The process' one logger. All but `posted` is set before threads start; the level is atomic inside spdlog.
struct Logger {
  std::string daemon;
  bool json = false;
  std::shared_ptr<spdlog::logger> out = std::make_shared<spdlog::logger>("lockstep", std::make_shared<Stderr>());
  std::shared_ptr<spdlog::details::thread_pool> queue;
  std::shared_ptr<QueuedStderr> queued;  // null: lines are written by the threads that log them
  std::atomic<uint64_t> posted = 0;      // lines, into the queue

  Logger() { out->set_pattern(kPattern); }
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

std::string LogLine(const Logger& logger, LogLevel level, std::string_view event, std::span<const Field> fields) {
  const LogRecord record{std::chrono::system_clock::now(), level, logger.daemon, event, fields};
  return logger.json ? FormatJson(record) : FormatText(record);
}

// Events are literals of this program: their number is bounded.
struct Counts {
  Mutex mutex;
  std::map<std::pair<std::string, LogLevel>, uint64_t, std::less<>> times LS_GUARDED_BY(mutex);
};

Counts& TheCounts() {
  static Counts* const counts = new Counts;
  return *counts;
}

void Count(LogLevel level, std::string_view event, std::span<const Field> fields) {
  uint64_t times = 1;
  for (const Field& field : fields) {
    const auto* const number = std::get_if<uint64_t>(&field.value);
    if (field.name == "times" && number != nullptr) times = *number;
  }
  Counts& counts = TheCounts();
  MutexLock lock(counts.mutex);
  counts.times[{std::string(event), level}] += times;
}

void Write(LogLevel level, std::string_view event, std::span<const Field> fields) {
  if (level >= LogLevel::kWarn) Count(level, event, fields);
  Logger& logger = TheLogger();
  if (!logger.out->should_log(SpdlogLevel(level))) return;
  ++logger.posted;
  logger.out->log(SpdlogLevel(level), spdlog::string_view_t(LogLine(logger, level, event, fields)));
}

void QueuedStderr::log(const spdlog::details::log_msg& line) {
  Stderr::log(line);
  ++written_;
  const size_t dropped = queue_->overrun_counter();
  if (dropped == said_) return;
  const Field lines[] = {{"lines", dropped - said_}};
  Count(LogLevel::kWarn, "log_lines_dropped", {});
  said_ = dropped;
  const std::string text = LogLine(TheLogger(), LogLevel::kWarn, "log_lines_dropped", lines);
  Stderr::log({"", spdlog::level::warn, text});
}

// From here on no thread but the queue's own waits for stderr, which a reader that is stopped may fill.
void StartQueue(Logger& logger) {
  if (logger.queue != nullptr) return;
  logger.queue = std::make_shared<spdlog::details::thread_pool>(kWaitingLines, 1);
  logger.queued = std::make_shared<QueuedStderr>(logger.queue);
  const auto out = std::make_shared<spdlog::async_logger>("lockstep", logger.queued, logger.queue,
                                                          spdlog::async_overflow_policy::overrun_oldest);
  out->set_pattern(kPattern);
  out->set_level(logger.out->level());
  logger.out = out;
  logger.posted = 0;
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
  StartQueue(logger);
  return OkStatus();
}

void FlushLog() {
  const Logger& logger = TheLogger();
  const auto until = std::chrono::steady_clock::now() + kFlushTime;
  while (logger.queued != nullptr && logger.queued->gone() < logger.posted &&
         std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Status SetLogLevel(std::string_view level) {
  for (const LogLevel known : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarn, LogLevel::kError}) {
    if (LevelName(known) != level) continue;
    TheLogger().out->set_level(SpdlogLevel(known));
    return OkStatus();
  }
  return {ErrorCode::kConfig, Cat("log level '", level, "' is none of debug, info, warn, error")};
}

std::vector<EventCount> EventCounts() {
  Counts& counts = TheCounts();
  MutexLock lock(counts.mutex);
  std::vector<EventCount> all;
  for (const auto& [what, times] : counts.times) all.push_back({what.first, what.second, times});
  return all;
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
