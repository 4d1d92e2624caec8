#!/usr/bin/env python3
"""Draws docs/figures/fleet.png: six panels of deploy/dashboards/fleet.json as a real Prometheus answers them. It scrapes an
agent whose trainer publishes, and three receivers over a slow link. One receiver is killed and starts again; the engine of
another refuses some versions. Grafana has no part in it: titles, queries, units and legends are those of the dashboard.

    PYTHONPATH=tests/integration:tests/bench/plots:python .cache/venv/bin/python tests/metrics/draw_dashboard.py
"""

import json
import re
import time
from dataclasses import dataclass

import plots
from harness import ROOT, Cluster
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, Formatter, MaxNLocator, PercentFormatter
from ports import ReservedPort
from prometheus import Prometheus
from replicas import ToyModel

SHOWN = (
    "Versions",
    "Lag of what is served",
    "Engines by state",
    "Failures",
    "Bytes from the network and from memory",
    "Receivers: seconds of each stage, p50",
)
PERIOD = 0.5  # of a training step, in seconds
# In seconds since the first version. Before SHOWN_FROM receivers pull their first one.
SHOWN_FROM, KILLED, STARTED, SECONDS = 25.0, 35.0, 50.0, 85.0
REFUSED = (125, 145)  # versions
LINK = 5_000_000  # bytes a second of a receiver
COLUMNS = 2
VARIABLES = {"$__rate_interval": "4s", "$__range": "80s", "$model": ".*", "$job": ".*"}
UNITS: "dict[str, Formatter]" = {
    "s": EngFormatter("s"),
    "Bps": EngFormatter("B/s"),
    "bytes": EngFormatter("B"),
    "percentunit": PercentFormatter(1.0),
}


@dataclass(frozen=True)
class Recording:
    """What a Prometheus saw of a fleet, and when: in seconds since the epoch."""

    prometheus: Prometheus
    begin: float
    killed: float
    started: float
    end: float


def record(cluster: Cluster) -> Recording:
    agent = cluster.agent(local_socket="none", receiver_rate_limit=LINK, metrics_listen="127.0.0.1:0")
    engines = dict.fromkeys(("inference-0", "inference-1"), "hook:true")
    engines["inference-2"] = f"hook:test $LOCKSTEP_VERSION -lt {REFUSED[0]} -o $LOCKSTEP_VERSION -gt {REFUSED[1]}"
    ports = [ReservedPort() for _ in engines]  # the same after a restart
    receivers = [
        cluster.receiver(agent, name=name, engine=hook, engine_attempts=1, metrics_listen=port.address)
        for (name, hook), port in zip(engines.items(), ports)
    ]
    prometheus = Prometheus(cluster.directory / "prometheus")
    prometheus.scrape(agent, *receivers)
    model = ToyModel(blocks=256)
    times: "list[float]" = []

    def publish_until(seconds: float) -> None:
        while not times or time.time() < times[0] + seconds:
            step = time.time()
            publisher.publish(tensors=model.step())
            times.append(step)
            time.sleep(max(0.0, step + PERIOD - time.time()))

    with agent.publisher(model.tensors) as publisher:
        publish_until(KILLED)
        killed = time.time()
        receivers[0].kill()
        publish_until(STARTED)
        started = time.time()
        receivers[0].start()
        publish_until(SECONDS)
    return Recording(prometheus, times[0] + SHOWN_FROM, killed, started, time.time())


def draw(panels: "list[dict]", recording: Recording) -> Figure:
    rows = -(-len(panels) // COLUMNS)
    figure = Figure(figsize=(6.5 * COLUMNS, 3.4 * rows), layout="constrained")
    axes = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    dead = (recording.killed - recording.begin, recording.started - recording.begin)
    colours: "dict[str, str]" = {}
    for panel, axis in zip(panels, axes):
        span = axis.axvspan(*dead, color="#eeeeee", zorder=0)
        draw_panel(axis, panel, recording, colours)
    figure.legend([span], ["inference-0 is dead: killed, and started again"], loc="outside upper right")
    return figure


def draw_panel(axis: Axes, panel: dict, recording: Recording, colours: "dict[str, str]") -> None:
    """`colours`: those of names that other panels have, too."""
    defaults = panel["fieldConfig"]["defaults"]
    axis.set_title(panel["title"], fontweight="bold", fontsize="medium", loc="left")
    axis.set(xlabel="time, s", ylabel=defaults["custom"]["axisLabel"])
    for target in panel["targets"]:
        for series in answers(target["expr"], recording):
            label = re.sub(r"{{(\w+)}}", lambda name: series["metric"].get(name[1], ""), target["legendFormat"])
            colour = colours.setdefault(label.partition(" ")[0], plots.COLOURS[len(colours) % len(plots.COLOURS)])
            width = 4 / (1 + len(axis.get_lines()))  # lines that lie on another show
            # A time without an answer breaks the line.
            known = {float(at): float(value) for at, value in series["values"]}
            times = [recording.begin + PERIOD * step for step in range(steps(recording))]
            near = [known.get(round(at, 3), float("nan")) for at in times]
            axis.plot([at - recording.begin for at in times], near, linewidth=max(width, 1), color=colour, label=label)
    axis.set_xlim(0, PERIOD * steps(recording))
    axis.set_ylim(bottom=0)
    if defaults["unit"] in UNITS:
        axis.yaxis.set_major_formatter(UNITS[defaults["unit"]])
    else:
        axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    _, labels = axis.get_legend_handles_labels()
    columns = 2 if any("served" in label for label in labels) else 4
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=columns, fontsize="small")


def steps(recording: Recording) -> int:
    return int((recording.end - recording.begin) / PERIOD)


def answers(query: str, recording: Recording) -> "list[dict]":
    for variable, value in VARIABLES.items():
        query = query.replace(variable, value)
    last = recording.begin + PERIOD * steps(recording)
    asked = {"query": query, "start": f"{recording.begin:.3f}", "end": f"{last:.3f}", "step": str(PERIOD)}
    return recording.prometheus.ask("query_range", **asked)["result"]


def main() -> None:
    panels = json.loads((ROOT / "deploy/dashboards/fleet.json").read_text())["panels"]
    by_title = {panel["title"]: panel for panel in panels}
    with Cluster() as cluster:
        recording = record(cluster)
        try:
            figure = draw([by_title[title] for title in SHOWN], recording)
            plots.save(figure, ROOT / "docs/figures/fleet.png")
        finally:
            recording.prometheus.close()


if __name__ == "__main__":
    main()
