"""What the benchmark programs in Python share: their options, the size of their model, and what they print."""

import argparse
import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from harness import roomy_directory
from weights import M_BYTES

EX_OSERR = 71
ROOM_BYTES = 1 << 30  # for processes, deltas, and others on the machine
LEAST_BYTES = 2_000_000  # a smaller model says nothing


@dataclass(frozen=True)
class Options:
    """Which model is measured, and how often."""

    quick: bool
    model_bytes: int
    repeats: int


def options(copies: float, full_bytes: int = M_BYTES, quick_bytes: int = 8_000_000, repeats: int = 9) -> Options:
    """Of the command line; for a model that the machine has memory for so many copies of."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="a tiny model, few times")
    quick = parser.parse_args().quick
    return Options(quick, fitting_bytes(quick_bytes if quick else full_bytes, copies), 2 if quick else repeats)


def fitting_bytes(wanted: int, copies: float) -> int:
    """`wanted`, or the largest size of which so many copies fit into memory, all but one of them into the file system
    that is shared memory; less than was wanted is said on stderr. Ends the program, with status 71, when that is too
    small for any figure."""
    memory = (available_bytes() - ROOM_BYTES) / copies
    shared = shutil.disk_usage(roomy_directory()).free / max(1, copies - 1)
    fitting = int(min(wanted, memory, shared))
    if fitting < wanted:
        name = Path(sys.argv[0]).name
        fits = f"{copies:g} copies of {max(0, fitting) / 1e9:.3g} GB fit into memory"
        print(f"{name}: {wanted / 1e9:.3g} GB are wanted, and {fits}", file=sys.stderr)
    if fitting < min(wanted, LEAST_BYTES):
        raise SystemExit(EX_OSERR)
    return fitting


def available_bytes() -> int:
    return int(re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) << 10


def print_figure(name: str, unit: str, model_bytes: int, values: "list[float]", baselines: "list[float]") -> None:
    """Every sample of a figure, and of its baseline or one bound."""
    line = {"name": name, "unit": unit, "model_bytes": model_bytes, "values": values, "baselines": baselines}
    print(json.dumps(line), flush=True)


def print_series(name: str, unit: str, model_bytes: int, rows: "list[dict]") -> None:
    """Rows that plots and documents show; each says the size of the model."""
    rows = [{"model_bytes": model_bytes, **row} for row in rows]
    print(json.dumps({"series": name, "unit": unit, "rows": rows}), flush=True)
