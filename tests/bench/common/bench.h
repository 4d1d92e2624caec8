// What the benchmark programs in C++ share: a clock, how large a model memory allows, an end at the first error, and
// the JSON lines that run.py reads.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace lockstep::bench {

using Json = nlohmann::ordered_json;

// Each program defines Run; main.cc calls it. `quick` asks for a tiny model, few times.
void Run(bool quick);

[[noreturn]] inline void Fail(const Status& status) {
  std::fprintf(stderr, "benchmark: %s\n", status.ToString().c_str());
  std::exit(1);
}

template <typename T>
T OrDie(Result<T> result) {
  if (!result.ok()) Fail(result.status());
  return *std::move(result);
}

inline void OrDie(const Status& status) {
  if (!status.ok()) Fail(status);
}

inline void Require(bool fact, const char* otherwise) {
  if (!fact) Fail({ErrorCode::kInternal, otherwise});
}

// `wanted`, or the largest model of which `copies` fit into memory, which stderr then says. Ends the process with
// status 71 when that is too small for any figure.
inline uint64_t FittingBytes(uint64_t wanted, uint64_t copies) {
  constexpr uint64_t kRoom = uint64_t{1} << 30;  // for deltas and for others on the machine
  constexpr uint64_t kLeast = 8'000'000;
  uint64_t kibibytes = 0;
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    if (word == "MemAvailable:" && file >> kibibytes) break;
  }
  const uint64_t available = kibibytes << 10;
  const uint64_t fitting = available > kRoom ? (available - kRoom) / copies : 0;
  if (fitting >= wanted) return wanted;
  std::fprintf(stderr, "benchmark: %.2f GB are wanted, and %lu copies of %.2f GB fit into memory\n",
               static_cast<double>(wanted) / 1e9, copies, static_cast<double>(fitting) / 1e9);
  if (fitting < kLeast) std::exit(71);
  return fitting;
}

template <typename Body>
double TimeOnce(Body body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Seconds of each of `repeats` calls of `body`, after one call that warms memory.
template <typename Body>
std::vector<double> TimeRepeated(int repeats, Body body) {
  std::vector<double> seconds;
  body();
  for (int i = 0; i < repeats; ++i) seconds.push_back(TimeOnce(body));
  return seconds;
}

// REQUIRES at least one sample.
inline double Median(std::vector<double> samples) {
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

// In GB/s, of passes over so many bytes.
inline std::vector<double> Throughput(const std::vector<double>& seconds, uint64_t bytes) {
  std::vector<double> rates;
  for (const double each : seconds) rates.push_back(static_cast<double>(bytes) / each / 1e9);
  return rates;
}

inline void PrintLine(const Json& line) {
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

// `baselines` has samples of what `values` are compared with, or one number: a bound. `model_bytes` is the size of the
// model that was measured. run.py makes medians and ratios.
inline void PrintResult(std::string_view name, std::string_view unit, uint64_t model_bytes,
                        const std::vector<double>& values, const std::vector<double>& baselines) {
  PrintLine(
      {{"name", name}, {"unit", unit}, {"model_bytes", model_bytes}, {"values", values}, {"baselines", baselines}});
}

// A row of what plots and documents show in addition to the figures. Rows of one name make the series.
inline void PrintRow(std::string_view series, std::string_view unit, Json row) {
  PrintLine({{"series", series}, {"unit", unit}, {"rows", Json::array({std::move(row)})}});
}

}  // namespace lockstep::bench
