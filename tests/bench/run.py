"""Runs the benchmark programs, prints their medians, ratios and spreads, and draws plots (tests/bench/run.sh is the
command).

A program prints JSON, a line for each figure and for each part of a series:

    {"name": FIGURE, "unit": UNIT, "values": [samples], "baselines": [samples, or one bound]}
    {"series": NAME, "unit": UNIT, "rows": [{...}, ...]}
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import plots

ROOT = Path(__file__).resolve().parents[2]
BINARIES = ROOT / "bazel-bin/tests/bench"
BENCHES = ROOT / "tests/bench"
PYTHON = ROOT / ".cache/venv/bin/python"
FIGURES_DIRECTORY = ROOT / "docs/figures"
SWEEP = "delta_sweep"  # has series only
CANNOT_MEASURE = 77  # of a program: this machine or user lacks what it needs, and it said what


@dataclass(frozen=True)
class Figure:
    """A figure, the program that measures it, and what `ratio` is to reach."""

    name: str
    program: str
    ratio: str  # how value and baseline make it: "value/baseline" or "baseline/value"
    reach: str
    about: str


FIGURES = [
    Figure("plan_compile_qwen3_30b_a3b", "plan_bench", "value/baseline", "<= 1", "against 1 s on one core"),
    Figure("plan_compile_deepseek_v3", "plan_bench", "value/baseline", "<= 1", "against 10 s on one core"),
    Figure("plan_execute", "execute_bench", "value/baseline", ">= 0.7", "TP4 shards into HF bytes, against memcpy"),
    Figure("publish_extra_memory", "publish_memory_bench", "value/baseline", "<= 1", "of a local rank, against 16 MiB"),
    Figure("scatter_tp4", "scatter_bench", "value/baseline", "<= 1.5", "a delta into TP4 buffers, against a replica"),
    Figure("colocated_full_pull", "local_pull_bench.py", "value/baseline", "<= 0.5", "out of memory, against lanes"),
    Figure("ring_pipelining", "ring_bench.py", "value/baseline", "<= 0.75", "a ring of two buckets, against one"),
    Figure("placement_compile_qwen3_30b_a3b", "placement_bench", "value/baseline", "<= 1", "TP8, against 1 s"),
    Figure("diff_encode_fast", "delta_bench", "value/baseline", ">= 0.85", "compare, hash, encode, against reading"),
    Figure("diff_encode_compact", "delta_bench", "value/baseline", ">= 0.6", "likewise, with the entropy stage"),
    Figure("payload_bytes_per_change", "delta_bench", "value/baseline", "<= 1.1", "compact at 0.9 %, against entropy"),
    Figure("decode_apply_verify", "delta_bench", "value/baseline", ">= 0.6", "of the receiver, against reading"),
    Figure("full_pull", "full_pull_bench.py", "value/baseline", ">= 0.9", "over lanes, against plain sendfile and recv"),
    Figure("delta_sync", "sync_bench.py", "baseline/value", ">= 10", "publish to committed, against a NumPy pipeline"),
    Figure("publish_blocked", "publish_bench.py", "value/baseline", "<= 1.1", "of a trainer, against memcpy"),
    Figure("fanout_cpu", "fanout_bench.py", "value/baseline", "<= 0.05", "agent, the 8th receiver against the whole first sync"),
    Figure("agent_rss", "idle_bench.py", "value/baseline", "<= 1", "beside halves and deltas, against 256 MiB"),
    Figure("receiver_rss", "idle_bench.py", "value/baseline", "<= 1", "beside replicas, against 256 MiB"),
    Figure("idle_cpu", "idle_bench.py", "value/baseline", "<= 1", "both daemons, against 0.2 % of a core"),
    Figure("layout_100k", "layout_bench", "value/baseline", "<= 1", "control plane of 100,000 tensors, against 1 s"),
    Figure("wan_full_pull", "wan_bench.py", "value/baseline", ">= 0.85", "the worst emulated WAN, against iperf3"),
    Figure("wan_delta_latency", "wan_bench.py", "value/baseline", "<= 1", "likewise, against 2 round trips + bytes/rate + no link"),
    Figure("pause_ratio", "pause_bench.py", "value/baseline", "<= 0.05", "of TP4 in place, against reloading the file"),
    Figure("pause_flip_ratio", "pause_bench.py", "value/baseline", "<= 0.05", "the same with two halves"),
]


@dataclass
class Measured:
    """What programs printed, and which could not."""

    figures: "dict[str, dict]" = field(default_factory=dict)
    series: "dict[str, dict]" = field(default_factory=dict)  # name -> {"unit", "rows"}
    absent: "set[str]" = field(default_factory=set)  # programs that cannot measure here

    def take(self, line: dict) -> None:
        """One line that a program printed."""
        if "series" in line:
            known = self.series.setdefault(line["series"], {"unit": line["unit"], "rows": []})
            known["rows"] += line["rows"]
        else:
            self.figures[line["name"]] = line


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/bench/run.sh", add_help=False, allow_abbrev=False)
    parser.add_argument("--only", action="append", choices=[figure.name for figure in FIGURES])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plots", type=Path)
    try:
        options = parser.parse_args()
    except SystemExit:
        return 64
    wanted = [figure for figure in FIGURES if options.only is None or figure.name in options.only]
    programs = list(dict.fromkeys(figure.program for figure in wanted)) + ([SWEEP] if options.only is None else [])
    measured, ran = Measured(), True
    for program in programs:
        ran = run_program(program, options.quick, measured) and ran
    absent = [figure.name for figure in wanted if figure.program in measured.absent]
    results = [summary(figure, measured.figures[figure.name]) for figure in wanted if figure.name in measured.figures]
    for lost in {figure.name for figure in wanted} - set(measured.figures) - set(absent):
        ran = False
        print(f"run.sh: nothing measured {lost}", file=sys.stderr)
    machine = describe_machine()
    print_table(machine, results, options.quick)
    if options.json:
        report = {"machine": machine, "results": results, "not_measured": absent, "series": measured.series}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    with plot_directory(options) as directory:
        if directory:
            plots.draw_all(measured.series, machine, Path(directory))
    return 0 if ran else 1


def plot_directory(options: argparse.Namespace) -> "tempfile.TemporaryDirectory | nullcontext":
    """Where plots go: by themselves, those of a whole run to the documents; of a quick one, to nowhere, drawn as a
    trial."""
    if options.plots is not None or options.only is not None:
        return nullcontext(options.plots)
    return tempfile.TemporaryDirectory() if options.quick else nullcontext(FIGURES_DIRECTORY)


def run_program(program: str, quick: bool, measured: Measured) -> bool:
    """Takes what the program prints; False when it failed."""
    run = [PYTHON, BENCHES / program] if program.endswith(".py") else [BINARIES / program]
    command = [*run, *(["--quick"] if quick else [])]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=1800)
    if done.returncode == CANNOT_MEASURE:
        measured.absent.add(program)
        print(f"run.sh: {program} is left out: it said why", file=sys.stderr)
        return True
    if done.returncode != 0:
        print(f"run.sh: {program} ended with status {done.returncode}", file=sys.stderr)
        return False
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            measured.take(json.loads(line))
    return True


def summary(figure: Figure, measured: dict) -> dict:
    """Medians, and the ratio of each value to its baseline where there are as many: those were measured in turns, and
    how fast a machine is changes while it measures."""
    values, baselines = measured["values"], measured["baselines"]
    value, baseline = statistics.median(values), statistics.median(baselines)
    pairs = zip(values, baselines) if len(values) == len(baselines) else [(value, baseline)]
    upward = figure.ratio == "value/baseline"
    return {
        "name": figure.name,
        "value": value,
        "unit": measured["unit"],
        "baseline": baseline,
        "ratio": statistics.median(ours / theirs if upward else theirs / ours for ours, theirs in pairs),
        "spread": (max(values) - min(values)) / value if value else 0.0,
    }


def describe_machine() -> dict:
    cpu = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    cores = len(os.sched_getaffinity(0))
    return {"cpu": cpu, "cores": cores, "memory_gib": round(memory_kib / 2**20, 1), "kernel": platform.release()}


def print_table(machine: dict, results: "list[dict]", quick: bool) -> None:
    print(f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB" + (", quick" if quick else ""))
    about = {figure.name: figure for figure in FIGURES}
    rows = [("figure", "value", "baseline", "ratio", "to reach", "spread", "")]
    for result in results:
        figure = about[result["name"]]
        rows.append(
            (
                result["name"],
                f"{result['value']:.4g} {result['unit']}",
                f"{result['baseline']:.4g} {result['unit']}",
                f"{result['ratio']:.3f}",
                figure.reach,
                f"{100 * result['spread']:.0f} %",
                figure.about,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
