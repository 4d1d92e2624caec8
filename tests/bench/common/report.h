// What a benchmark program prints: one JSON line per figure, with every sample of it and of its baseline.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace lockstep::bench {

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

inline void PrintSamples(const std::vector<double>& samples) {
  const char* separator = "[";
  for (const double sample : samples) {
    std::printf("%s%.9g", separator, sample);
    separator = ", ";
  }
  std::printf("%s]", samples.empty() ? "[" : "");
}

// `baselines` has samples of what `values` are compared with, or one number: a bound. `model_bytes` is the size of the
// model that was measured. run.py makes medians and ratios.
inline void PrintResult(std::string_view name, std::string_view unit, uint64_t model_bytes,
                        const std::vector<double>& values, const std::vector<double>& baselines) {
  std::printf(R"({"name": "%.*s", "unit": "%.*s", "model_bytes": %lu, "values": )", static_cast<int>(name.size()),
              name.data(), static_cast<int>(unit.size()), unit.data(), model_bytes);
  PrintSamples(values);
  std::printf(R"(, "baselines": )");
  PrintSamples(baselines);
  std::printf("}\n");
  std::fflush(stdout);
}

// A row of a series: what plots and documents show in addition to the figures. Rows of one name, in the order in which
// they are printed, make the series in run.py's report.
struct Column {
  std::string_view name;
  std::variant<double, std::string_view> value;
};

inline void PrintRow(std::string_view series, std::string_view unit, const std::vector<Column>& row) {
  std::string text =
      "{\"series\": \"" + std::string(series) + "\", \"unit\": \"" + std::string(unit) + "\", \"rows\": [";
  const char* separator = "{";
  for (const Column& column : row) {
    text += separator + ("\"" + std::string(column.name)) + "\": ";
    if (const auto* word = std::get_if<std::string_view>(&column.value)) {
      text += "\"" + std::string(*word) + "\"";
    } else {
      char number[32];
      std::snprintf(number, sizeof number, "%.9g", std::get<double>(column.value));
      text += number;
    }
    separator = ", ";
  }
  std::printf("%s}]}\n", text.c_str());
  std::fflush(stdout);
}

}  // namespace lockstep::bench
