#include "common/metrics/common_metrics.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "common/base/text.h"
#include "common/telemetry/log.h"

namespace lockstep::metrics {
namespace {

using prometheus::MetricType;

// Of a millisecond up to five minutes, three a decade or so.
const prometheus::Histogram::BucketBoundaries kSeconds{0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300};
// An agent has the models that trainers open; more are one.
constexpr size_t kMostModels = 64;
constexpr std::string_view kOtherModels = "(others)";

// Counted from zero on: Prometheus sees no increase in a series that begins at one.
constexpr std::array kRefusals = {"access_refused", "connection_refused", "control_peer_refused", "engine_rank_refused",
                                  "lane_refused",   "tls_files_refused",  "tls_policy_refused"};

enum Name : size_t { kStageSeconds, kStageBytes, kEvents };

struct Process {
  double cpu_seconds = 0;
  double resident_bytes = 0;
  double open_files = 0;
};

Process OwnProcess() {
  Process process;
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  for (const timeval& time : {usage.ru_utime, usage.ru_stime}) {
    process.cpu_seconds += static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  }
  uint64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  process.resident_bytes = static_cast<double>(resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)));
  std::error_code ignored;
  for (auto one = std::filesystem::directory_iterator("/proc/self/fd", ignored);
       !ignored && one != std::filesystem::directory_iterator(); one.increment(ignored)) {
    ++process.open_files;
  }
  return process;
}

double OpenFilesLimit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<double>(limit.rlim_cur);
}

// By the names that Prometheus' own libraries give.
const std::vector<Row<Process>>& ProcessTable() {
  static const std::vector<Row<Process>> table = {
      {{"process_cpu_seconds_total", MetricType::Counter, {}, "CPU time of all threads of the process"},
       [](const Process& process, Samples& samples) { samples.Add(process.cpu_seconds, {}); }},
      {{"process_resident_memory_bytes", MetricType::Gauge, {}, "memory in RAM, models included"},
       [](const Process& process, Samples& samples) { samples.Add(process.resident_bytes, {}); }},
      {{"process_open_fds", MetricType::Gauge, {}, "open file descriptors"},
       [](const Process& process, Samples& samples) { samples.Add(process.open_files, {}); }},
      {{"process_max_fds", MetricType::Gauge, {}, "limit of open file descriptors"},
       [](const Process&, Samples& samples) { samples.Add(OpenFilesLimit(), {}); }},
  };
  return table;
}

}  // namespace

CommonMetrics::Stage::Stage() : seconds(kSeconds) {}

CommonMetrics::CommonMetrics(std::string_view daemon)
    : names_{Cat(daemon, "_stage_seconds"), Cat(daemon, "_stage_bytes_total"), Cat(daemon, "_events_total")} {}

void CommonMetrics::Observe(const telemetry::Span& span) {
  MutexLock lock(mutex_);
  const bool room = stages_.size() < kMostModels * telemetry::kSpanNames.size();
  const Key key{span.model, span.name};
  Stage& stage = stages_[room || stages_.contains(key) ? key : Key{kOtherModels, span.name}];
  stage.seconds.Observe(static_cast<double>(span.end_unix_ns - span.begin_unix_ns) / 1e9);
  stage.bytes.Increment(static_cast<double>(span.bytes));
}

std::vector<Definition> CommonMetrics::Definitions() const {
  std::vector<Definition> definitions = {
      {names_[kStageSeconds],
       MetricType::Histogram,
       {"model", "stage"},
       "time of a stage of one version; the stages are those of `lockstepctl timeline`"},
      {names_[kStageBytes],
       MetricType::Counter,
       {"model", "stage"},
       "bytes that the stage compared, encoded, sent or received"},
      {names_[kEvents],
       MetricType::Counter,
       {"event", "level"},
       "warnings and errors by event, with those that the limit on log lines left out of the log"},
  };
  for (const Row<Process>& row : ProcessTable()) definitions.push_back(row.definition);
  return definitions;
}

void CommonMetrics::Collect(Families& families) const {
  const std::vector<Definition> definitions = Definitions();
  prometheus::MetricFamily seconds = FamilyOf(definitions[kStageSeconds]);
  prometheus::MetricFamily bytes = FamilyOf(definitions[kStageBytes]);
  {
    MutexLock lock(mutex_);
    for (const auto& [key, stage] : stages_) {
      prometheus::ClientMetric metric = stage.seconds.Collect();
      metric.label = {{"model", key.first}, {"stage", std::string(key.second)}};
      seconds.metric.push_back(std::move(metric));
      Samples(definitions[kStageBytes], bytes).Add(stage.bytes.Value(), {key.first, key.second});
    }
  }
  families.push_back(std::move(seconds));
  families.push_back(std::move(bytes));
  Samples events(definitions[kEvents], families.emplace_back(FamilyOf(definitions[kEvents])));
  std::vector<telemetry::EventCount> counts = telemetry::EventCounts();
  for (const char* refusal : kRefusals) {
    if (std::ranges::find(counts, refusal, &telemetry::EventCount::event) != counts.end()) continue;
    counts.push_back({.event = refusal, .level = telemetry::LogLevel::kWarn});
  }
  for (const telemetry::EventCount& one : counts) {
    events.Add(static_cast<double>(one.times), {one.event, telemetry::LevelName(one.level)});
  }
  Read(ProcessTable(), OwnProcess(), families);
}

}  // namespace lockstep::metrics
