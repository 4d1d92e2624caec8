#!/usr/bin/env python3
"""Draws docs/figures/fleet.png: the queries of deploy/dashboards/fleet.json, answered by a real Prometheus. It scrapes
an agent and three receivers for half a minute. The engine of one receiver refuses some versions.

    PYTHONPATH=tests/integration:python .cache/venv/bin/python tests/metrics/draw_dashboard.py
"""

import json
import time

import matplotlib
from harness import ROOT, Cluster
from matplotlib.figure import Figure
from prometheus import Prometheus
from replicas import ToyModel

SECONDS = 30.0
COLUMNS = 4
VARIABLES = {"$__rate_interval": "5s", "$__range": "30s", "$model": ".*", "$job": ".*"}
LISTEN = {"metrics_listen": "127.0.0.1:0"}


def record(cluster: Cluster) -> "tuple[Prometheus, float, float]":
    """A Prometheus that saw a fleet, and from when to when."""
    agent = cluster.agent(**LISTEN)
    hooks = ["hook:true", "hook:sleep 0.2", "hook:test $(($LOCKSTEP_VERSION % 8)) -lt 6"]
    receivers = [cluster.receiver(agent, engine=hook, engine_attempts=1, **LISTEN) for hook in hooks]
    prometheus = Prometheus(cluster.directory / "prometheus")
    prometheus.scrape(agent, *receivers)
    model = ToyModel(blocks=64)
    begin = time.time()
    with agent.publisher(model.tensors) as publisher:
        version = 0
        while time.time() < begin + SECONDS:
            version += 1
            publisher.publish(version=version, tensors=model.step())
            time.sleep(0.5)
    return prometheus, begin + 1, time.time()


def draw(panels: "list[dict]", prometheus: Prometheus, begin: float, end: float) -> Figure:
    panels = [panel for panel in panels if panel.get("targets")]
    rows = -(-len(panels) // COLUMNS)
    figure = Figure(figsize=(4 * COLUMNS, 2.4 * rows), layout="constrained")
    axes = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    for panel, axis in zip(panels, axes):
        axis.set_title(panel["title"], fontsize=9)
        axis.tick_params(labelsize=7)
        for target in panel["targets"]:
            query = target["expr"]
            for variable, value in VARIABLES.items():
                query = query.replace(variable, value)
            answer = prometheus.ask("query_range", query=query, start=str(begin), end=str(end), step="0.5")
            for series in answer["result"]:
                axis.plot(*zip(*[(float(at) - begin, float(value)) for at, value in series["values"]]), linewidth=1)
        axis.set_ylim(bottom=0)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    return figure


def main() -> None:
    panels = json.loads((ROOT / "deploy/dashboards/fleet.json").read_text())["panels"]
    matplotlib.use("agg")
    with Cluster() as cluster:
        prometheus, begin, end = record(cluster)
        try:
            draw(panels, prometheus, begin, end).savefig(ROOT / "docs/figures/fleet.png", dpi=70)
        finally:
            prometheus.close()


if __name__ == "__main__":
    main()
