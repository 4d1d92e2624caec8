// What a benchmark program prints: one JSON line per figure, with every sample of it and of its baseline.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::bench {

using Json = nlohmann::ordered_json;

// Seconds that `body` takes.
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

// Whether the command line asks for a tiny model, few times.
inline bool IsQuick(int argc, char** argv) {
  return argc > 1 && std::string_view(argv[1]) == "--quick";
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

// A row of a series, an object: what plots and documents show in addition to the figures. Rows of one name, in the
// order in which they are printed, make the series in run.py's report.
inline void PrintRow(std::string_view series, std::string_view unit, Json row) {
  PrintLine({{"series", series}, {"unit", unit}, {"rows", Json::array({std::move(row)})}});
}

}  // namespace lockstep::bench
