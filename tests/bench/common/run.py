"""Runs the benchmark programs, prints medians, ratios and spreads as they come, and draws plots (tests/bench/run.sh is
the command).

A program prints JSON, a line for each figure and for each part of a series, when it has measured it:

    {"name": FIGURE, "unit": UNIT, "model_bytes": SIZE, "values": [samples], "baselines": [samples, or one bound]}
    {"series": NAME, "unit": UNIT, "rows": [{...}, ...]}
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import paths
import plots
from figures import GROUPS, NAMES, PROGRAMS, figures_of, group
from report import Report, describe_machine

PLOTS_DIRECTORY = paths.ROOT / "docs/figures"
CANNOT_MEASURE = 77  # of a program: this machine or user lacks what it needs, and it said what
LIMIT_S, ENDING_S = 1800, 30


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/bench/run.sh", add_help=False, allow_abbrev=False)
    parser.add_argument("--only", action="append", choices=(*NAMES, *GROUPS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plots", type=Path)
    parser.add_argument("--isa", choices=("avx2",))
    try:
        return parser.parse_args()
    except SystemExit:
        raise SystemExit(64) from None


def main() -> int:
    options = parse_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if options.isa:
        os.environ["LOCKSTEP_ISA"] = options.isa  # kernels/instruction_sets.cc
    report = Report(describe_machine(options.isa), options.quick, options.json)
    report.write()
    report.print_heading()
    succeeded = True
    for program in PROGRAMS:
        whole = options.only is None or group(program) in GROUPS and group(program) in options.only
        wanted = {figure.name for figure in figures_of(program) if whole or figure.name in options.only}
        if wanted or options.only is None:
            succeeded = run_program(program, wanted, report) and succeeded
    report.finished = True
    report.write()
    with plots_directory(options) as directory:
        if directory:
            plots.draw_all(report.series, report.machine, Path(directory))
    return 0 if succeeded else 1


def plots_directory(options: argparse.Namespace) -> "tempfile.TemporaryDirectory | nullcontext":
    """By themselves, plots of a whole run go to the documents; those of a quick one are drawn as a trial."""
    if options.plots is not None or options.only is not None or options.isa is not None:
        return nullcontext(options.plots)
    return tempfile.TemporaryDirectory() if options.quick else nullcontext(PLOTS_DIRECTORY)


def run_program(program: str, wanted: "set[str]", report: Report) -> bool:
    """Adds what the program prints; False when it failed, or left out a figure that is wanted."""
    figures = {figure.name: figure for figure in figures_of(program) if figure.name in wanted}

    def take(line: dict) -> None:
        if "series" in line:
            report.add_series(line)
        elif line["name"] in figures:
            report.add_result(figures.pop(line["name"]), line)

    start = time.monotonic()
    status = run(program, report.quick, take)
    report.seconds[program] = round(time.monotonic() - start, 1)
    if status == CANNOT_MEASURE:
        report.not_measured += figures
        print(f"run.sh: {program} is left out: it said why", file=sys.stderr)
    elif status != 0:
        print(f"run.sh: {program} ended with status {status}", file=sys.stderr)
    elif figures:
        print(f"run.sh: {program} did not print {', '.join(figures)}", file=sys.stderr)
    report.write()
    return status == CANNOT_MEASURE or (status == 0 and not figures)


def run(program: str, quick: bool, take: "Callable[[dict], None]") -> int:
    """Calls `take` with each JSON object that the program prints, when it does; returns its exit status. It does not
    outlive the call, nor LIMIT_S."""
    python = program.endswith(".py")
    command = [sys.executable, paths.ROOT / "tests/bench" / program] if python else [paths.BINARIES / program]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths.FOLDERS)}
    process = subprocess.Popen(
        [*command, *["--quick"] * quick], cwd=paths.ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    limit = threading.Timer(LIMIT_S, process.kill)
    limit.start()
    try:
        for line in process.stdout:
            if line.startswith("{"):
                take(json.loads(line))
        return process.wait()
    finally:
        limit.cancel()
        end(process)


def end(process: subprocess.Popen) -> None:
    """Python programs end their daemons when they are interrupted."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    process.stdout.close()


if __name__ == "__main__":
    sys.exit(main())
