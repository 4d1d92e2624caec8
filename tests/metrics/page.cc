// Prints docs/metrics.md, from the tables that make the metrics: bazel-bin/tests/metrics/page > docs/metrics.md
#include <iostream>

#include "common/metrics/common_metrics.h"
#include "raas_receiver/receiver/receiver_metrics.h"
#include "trainer_agent/agent/agent_metrics.h"

namespace lockstep {
namespace {

constexpr std::string_view kHead =
    "# Metrics\n\n"
    "Both daemons answer `GET /metrics` in Prometheus' text format at `--metrics-listen HOST:PORT`. The default is "
    "empty: no port.\n"
    "The port uses plain HTTP without authentication. It tells names of models, versions, sizes and times, but no "
    "weights.\n\n"
    "```yaml\n"
    "scrape_configs:\n"
    "  - job_name: lockstep\n"
    "    static_configs:\n"
    "      - targets: [\"trainer-0:7703\", \"inference-0:7713\", \"inference-1:7713\"]\n"
    "```\n\n"
    "[deploy/alerts.yaml](../deploy/alerts.yaml) has the alerts. The runbook has "
    "[a line for each alert](howto/runbook.md#alerts).\n"
    "[deploy/dashboards/fleet.json](../deploy/dashboards/fleet.json) is a dashboard for Grafana.\n\n"
    "![Six panels of the dashboard](figures/fleet.png)\n\n"
    "`tests/metrics/draw_dashboard.py` drew these six panels of the dashboard from a real Prometheus, without Grafana. "
    "An agent has three\n"
    "receivers. `inference-0` is killed and restarted, and pulls the versions that it missed. The engine of "
    "`inference-2` refuses 21 versions.\n\n"
    "Counters start at 0 with the process. Labels come from closed sets: a model, a stage, an event, an engine's name. "
    "No label names a peer\n"
    "or a tensor.\n";

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
