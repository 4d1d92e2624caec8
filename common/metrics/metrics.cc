#include "common/metrics/metrics.h"

#include <prometheus/text_serializer.h>

#include "common/base/text.h"

namespace lockstep::metrics {
namespace {

std::string_view TypeName(prometheus::MetricType type) {
  switch (type) {
    case prometheus::MetricType::Counter:
      return "counter";
    case prometheus::MetricType::Histogram:
      return "histogram";
    default:
      return "gauge";
  }
}

}  // namespace

void Samples::Add(double value, std::initializer_list<std::string_view> labels) {
  prometheus::ClientMetric metric;
  const std::string_view* const values = labels.begin();
  for (size_t i = 0; i < definition_.labels.size(); ++i) {
    metric.label.push_back({std::string(definition_.labels[i]), std::string(values[i])});
  }
  metric.counter.value = value;
  metric.gauge.value = value;
  family_.metric.push_back(std::move(metric));
}

prometheus::MetricFamily FamilyOf(const Definition& definition) {
  return {std::string(definition.name), std::string(definition.help), definition.type, {}};
}

std::string Page(const Families& families) {
  return prometheus::TextSerializer().Serialize(families);
}

std::string Documented(const std::vector<Definition>& definitions) {
  std::string text = "| metric | type | labels | |\n|---|---|---|---|\n";
  for (const Definition& one : definitions) {
    std::string labels;
    for (const std::string_view label : one.labels) labels += Cat(labels.empty() ? "`" : ", `", label, "`");
    text += Cat("| `", one.name, "` | ", TypeName(one.type), " | ", labels, " | ", one.help, " |\n");
  }
  return text;
}

}  // namespace lockstep::metrics
