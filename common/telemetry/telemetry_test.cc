#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "common/base/status_testing.h"
#include "common/telemetry/build_info.h"
#include "common/telemetry/log.h"
#include "common/telemetry/log_format.h"

namespace lockstep::telemetry {
namespace {

LogRecord Record(std::span<const Field> fields) {
  using namespace std::chrono;
  const auto time = system_clock::time_point(duration_cast<system_clock::duration>(milliseconds(1'740'830'400'007)));
  return {time, LogLevel::kInfo, "trainer_agent", "version_committed", fields};
}

TEST_CASE("A JSON line has ts, level, daemon and event first, then the fields with their types") {
  const std::vector<Field> fields = {{"model", "actor"},  {"version", uint64_t{18'000'000'000'000'000'000u}},
                                     {"delta_bytes", -3}, {"duration_s", 0.25},
                                     {"verified", true},  {"path", std::string("a \"b\"\n")}};
  CHECK(FormatJson(Record(fields)) ==
        R"({"ts":"2025-03-01T12:00:00.007Z","level":"info","daemon":"trainer_agent","event":"version_committed",)"
        R"("model":"actor","version":18000000000000000000,"delta_bytes":-3,"duration_s":0.25,"verified":true,)"
        R"("path":"a \"b\"\n"})");
}

TEST_CASE("A text line is one line whatever the fields hold") {
  const std::vector<Field> fields = {{"model", "actor"}, {"version", 7}, {"message", "two\nwords"}, {"empty", ""}};
  CHECK(FormatText(Record(fields)) ==
        R"(2025-03-01T12:00:00.007Z INFO  version_committed model=actor version=7 message="two\nwords" empty="")");
}

TEST_CASE("Bytes that are not UTF-8 do not break a line") {
  const std::vector<Field> fields = {{"name", std::string("\xff\xfe")}};
  CHECK(nlohmann::json::accept(FormatJson(Record(fields))));
  CHECK_FALSE(FormatText(Record(fields)).empty());
}

TEST_CASE("Unknown levels and formats are configuration errors that name the value") {
  CHECK_THAT(InitLogging("x", "loud", "auto"), FailsWith(ErrorCode::kConfig, "'loud'"));
  CHECK_THAT(InitLogging("x", "info", "yaml"), FailsWith(ErrorCode::kConfig, "'yaml'"));
  CHECK_THAT(SetLogLevel("all"), FailsWith(ErrorCode::kConfig, "'all'"));
  CHECK(InitLogging("x", "error", "json").ok());
  CHECK(SetLogLevel("debug").ok());
}

TEST_CASE("Logging works before and after it is set up") {
  Log(LogLevel::kDebug, "test_event", {{"n", 1}});
  LogError("test_failed", Status(ErrorCode::kIo, "disk on fire"), {{"model", "actor"}});
  LogWarn("test_degraded", Status(ErrorCode::kDeadline, "late"));
}

TEST_CASE("Warnings and errors are counted by event, as often as they say that they happened") {
  const auto times = [](std::string_view event) {
    uint64_t all = 0;
    for (const EventCount& one : EventCounts()) all += one.event == event ? one.times : 0;
    return all;
  };
  const Status failed(ErrorCode::kIo, "no");
  LogWarn("test_counted", failed, {{"times", uint64_t{7}}});
  LogWarn("test_counted", failed);
  LogError("test_counted", failed);
  Log(LogLevel::kInfo, "test_not_counted");
  CHECK(times("test_counted") == 9);
  CHECK(times("test_not_counted") == 0);
  const auto counts = EventCounts();
  CHECK(std::ranges::count_if(counts, [](const EventCount& one) {
          return one.event == "test_counted" && one.level == LogLevel::kError && one.times == 1;
        }) == 1);
}

TEST_CASE("The build says where it comes from") {
  CHECK_FALSE(BuildRevision().empty());
}

}  // namespace
}  // namespace lockstep::telemetry
