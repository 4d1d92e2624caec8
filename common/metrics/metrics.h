// A daemon's metrics: each is a row of a table, which makes both the page that Prometheus scrapes and the one that
// people read (docs/metrics.md).
//
// Labels are from closed sets: models, stages, events, names of engines. No peer and no tensor is one.
#pragma once

#include <prometheus/metric_family.h>
#include <prometheus/metric_type.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::metrics {

using Families = std::vector<prometheus::MetricFamily>;

struct Definition {
  std::string_view name;  // with the daemon's prefix, and its unit; "_total" for counters and nothing else
  prometheus::MetricType type = prometheus::MetricType::Gauge;
  std::vector<std::string_view> labels;
  std::string_view help;
};

// The samples of one metric.
class Samples {
 public:
  // REQUIRES both to outlive this.
  Samples(const Definition& definition, prometheus::MetricFamily& family) : definition_(definition), family_(family) {}

  // `labels`: a value for each of the definition's labels. REQUIRES that no other sample has the same.
  void Add(double value, std::initializer_list<std::string_view> labels);

 private:
  const Definition& definition_;
  prometheus::MetricFamily& family_;
};

// A metric that is read off `Source`, what a daemon's status says.
template <typename Source>
struct Row {
  Definition definition;
  std::function<void(const Source& source, Samples& samples)> read;
};

prometheus::MetricFamily FamilyOf(const Definition& definition);

template <typename Source>
void Read(const std::vector<Row<Source>>& table, const Source& source, Families& families) {
  for (const Row<Source>& row : table) {
    Samples samples(row.definition, families.emplace_back(FamilyOf(row.definition)));
    row.read(source, samples);
  }
}

// In Prometheus' text format.
std::string Page(const Families& families);

// A Markdown table.
std::string Documented(const std::vector<Definition>& definitions);

}  // namespace lockstep::metrics
