// Prints docs/metrics.md, from the tables that make the metrics: bazel-bin/tests/metrics/page > docs/metrics.md
#include <iostream>

#include "common/metrics/common_metrics.h"
#include "raas_receiver/receiver/receiver_metrics.h"
#include "trainer_agent/agent/agent_metrics.h"

namespace lockstep {
namespace {

constexpr std::string_view kHead =
    "# Metrics\n\n"
    "Both daemons answer `GET /metrics` in Prometheus' text format at `--metrics-listen HOST:PORT` (empty, the "
    "default: nowhere). It is plain\n"
    "HTTP, without authentication, and tells names of models, versions, sizes and times, and no weights.\n\n"
    "```yaml\n"
    "scrape_configs:\n"
    "  - job_name: lockstep\n"
    "    static_configs:\n"
    "      - targets: [\"trainer-0:7703\", \"inference-0:7713\", \"inference-1:7713\"]\n"
    "```\n\n"
    "[deploy/alerts.yaml](../deploy/alerts.yaml) has the alerts, which lead to "
    "[the lines that help](howto/runbook.md#alerts);\n"
    "[deploy/dashboards/fleet.json](../deploy/dashboards/fleet.json) is a dashboard for Grafana.\n\n"
    "![Six panels of the dashboard](figures/fleet.png)\n\n"
    "`tests/metrics/draw_dashboard.py` drew these six panels of it from a real Prometheus, without Grafana. An agent "
    "has "
    "three receivers.\n"
    "`inference-0` is killed and started again, and pulls what it missed. The engine of `inference-2` refuses 21 "
    "versions.\n\n"
    "Counters begin with the process. Labels are from closed sets: a model, a stage, an event, an engine's name; never "
    "a peer or a tensor.\n";

template <typename Source>
void Print(std::string_view daemon, const std::vector<metrics::Row<Source>>& table) {
  std::vector<metrics::Definition> definitions;
  for (const metrics::Row<Source>& row : table) definitions.push_back(row.definition);
  const metrics::CommonMetrics common(daemon);
  for (const metrics::Definition& one : common.Definitions()) definitions.push_back(one);
  std::cout << "\n## " << daemon << "\n\n" << metrics::Documented(definitions);
}

}  // namespace
}  // namespace lockstep

int main() {
  std::cout << lockstep::kHead;
  lockstep::Print("trainer_agent", lockstep::agent::AgentTable());
  lockstep::Print("raas_receiver", lockstep::receiver::ReceiverTable());
}
