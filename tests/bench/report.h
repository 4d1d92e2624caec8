// What a benchmark program prints: one JSON line per figure, with every sample of it and of its baseline.
#pragma once

#include <chrono>
#include <cstdio>
#include <string_view>
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

inline void PrintSamples(const std::vector<double>& samples) {
  const char* separator = "[";
  for (const double sample : samples) {
    std::printf("%s%.9g", separator, sample);
    separator = ", ";
  }
  std::printf("%s]", samples.empty() ? "[" : "");
}

// `baselines` has samples of what `values` are compared with, or one number: a bound. run.py makes medians and ratios.
inline void PrintResult(std::string_view name, std::string_view unit, const std::vector<double>& values,
                        const std::vector<double>& baselines) {
  std::printf(R"({"name": "%.*s", "unit": "%.*s", "values": )", static_cast<int>(name.size()), name.data(),
              static_cast<int>(unit.size()), unit.data());
  PrintSamples(values);
  std::printf(R"(, "baselines": )");
  PrintSamples(baselines);
  std::printf("}\n");
  std::fflush(stdout);
}

}  // namespace lockstep::bench
