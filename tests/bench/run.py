"""Runs the benchmark programs and prints their medians, ratios and spreads (tests/bench/run.sh is the command)."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BINARIES = ROOT / "bazel-bin/tests/bench"
BENCHES = ROOT / "tests/bench"
PYTHON = ROOT / ".cache/venv/bin/python"
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
    Figure("delta_sync", "sync_bench.py", "baseline/value", ">= 10", "publish to committed, against a NumPy pipeline"),
    Figure("publish_blocked", "publish_bench.py", "value/baseline", "<= 1.1", "of a trainer, against memcpy"),
    Figure("fanout_cpu", "fanout_bench.py", "value/baseline", "<= 0.05", "agent, the 8th receiver against the first"),
    Figure("agent_rss", "idle_bench.py", "value/baseline", "<= 1", "beside halves and deltas, against 256 MiB"),
    Figure("receiver_rss", "idle_bench.py", "value/baseline", "<= 1", "beside replicas, against 256 MiB"),
    Figure("idle_cpu", "idle_bench.py", "value/baseline", "<= 1", "both daemons, against 0.2 % of a core"),
    Figure("wan_full_pull", "wan_bench.py", "value/baseline", ">= 0.85", "the worst emulated WAN, against iperf3"),
    Figure("wan_delta_latency", "wan_bench.py", "value/baseline", "<= 1", "likewise, against 2 round trips + bytes/rate"),
    Figure("pause_ratio", "pause_bench.py", "value/baseline", "<= 0.05", "of TP4 in place, against reloading the file"),
    Figure("pause_flip_ratio", "pause_bench.py", "value/baseline", "<= 0.05", "the same with two halves"),
]


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/bench/run.sh", add_help=False, allow_abbrev=False)
    parser.add_argument("--only", action="append", choices=[figure.name for figure in FIGURES])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    try:
        options = parser.parse_args()
    except SystemExit:
        return 64
    wanted = [figure for figure in FIGURES if options.only is None or figure.name in options.only]
    results, absent, failed = [], [], False
    for program in dict.fromkeys(figure.program for figure in wanted):
        measured = run_program(program, options.quick)
        for figure in (figure for figure in wanted if figure.program == program):
            if measured is None:
                absent.append(figure.name)
            elif figure.name in measured:
                results.append(summary(figure, measured[figure.name]))
            else:
                failed = True
                print(f"run.sh: {program} did not measure {figure.name}", file=sys.stderr)
    machine = describe_machine()
    print_table(machine, results, options.quick)
    if options.json:
        report = {"machine": machine, "results": results, "not_measured": absent}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 1 if failed else 0


def run_program(program: str, quick: bool) -> "dict[str, dict] | None":
    """Name -> what the program printed about it; nothing for one that failed, None for one that cannot measure here."""
    run = [PYTHON, BENCHES / program] if program.endswith(".py") else [BINARIES / program]
    command = [*run, *(["--quick"] if quick else [])]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=1800)
    if done.returncode == CANNOT_MEASURE:
        print(f"run.sh: {program} is left out: it said why", file=sys.stderr)
        return None
    if done.returncode != 0:
        print(f"run.sh: {program} ended with status {done.returncode}", file=sys.stderr)
        return {}
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["name"]: line for line in lines if "name" in line}


def summary(figure: Figure, measured: dict) -> dict:
    values = measured["values"]
    value, baseline = statistics.median(values), statistics.median(measured["baselines"])
    upper, lower = (value, baseline) if figure.ratio == "value/baseline" else (baseline, value)
    return {
        "name": figure.name,
        "value": value,
        "unit": measured["unit"],
        "baseline": baseline,
        "ratio": upper / lower,
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
