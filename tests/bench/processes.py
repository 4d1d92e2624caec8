"""What benchmarks of whole processes share: their options, the memory they need, and what the system says of a process.

The import path of the tests' harness is set up here: import this before it.
"""

import argparse
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for folder in ("python", "tests", "tests/integration"):
    sys.path.insert(0, str(ROOT / folder))

from weights import M_BYTES  # noqa: E402

EX_OSERR = 71
POLL_S = 0.0005


@dataclass(frozen=True)
class Options:
    """Which model is measured, and how often."""

    quick: bool
    model_bytes: int
    repeats: int


def options(copies: float, full_bytes: int = M_BYTES, quick_bytes: int = 8_000_000, repeats: int = 9) -> Options:
    """Of the command line. Ends the program, with status 71, when the machine has no memory for so many copies of the
    model."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="a tiny model, twice")
    parser.add_argument("--model-bytes", type=int, help="another size of the model")
    parser.add_argument("--repeats", type=int)
    told = parser.parse_args()
    model_bytes = told.model_bytes or (quick_bytes if told.quick else full_bytes)
    needed, free = int(copies * model_bytes) + (512 << 20), free_bytes()
    if needed > free:
        print(f"{parser.prog}: {needed >> 20} MiB are needed, {free >> 20} MiB are free", file=sys.stderr)
        raise SystemExit(EX_OSERR)
    return Options(told.quick, model_bytes, told.repeats or (2 if told.quick else repeats))


def free_bytes() -> int:
    """Memory that can be had."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) << 10
    raise SystemExit("/proc/meminfo does not say MemAvailable")


def cpu_s(pid: int) -> float:
    """CPU time of a process, in the kernel too, with all threads that it has or had; in nanoseconds' resolution."""
    return time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid(3) would name


def memory_bytes(pid: int) -> "dict[str, int]":
    """Resident memory by kind: RssAnon, RssFile, RssShmem."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines if line.startswith("Rss")}


def published_version(receiver: object) -> int:
    """Of the version that a receiver shows; 0 for none."""
    try:
        return int(re.match(r"v(\d+)", Path(os.readlink(receiver.published())).name)[1])
    except FileNotFoundError:
        return 0


def wait_published(receiver: object, version: int, timeout_s: float = 120) -> float:
    """Waits until the receiver shows `version`, and returns when it was seen, by time.perf_counter()."""
    deadline = time.perf_counter() + timeout_s
    while published_version(receiver) != version:
        if time.perf_counter() > deadline or not receiver.running():
            raise SystemExit(f"version {version} was not committed in {timeout_s} s:\n{receiver.log_tail()}")
        time.sleep(POLL_S)
    return time.perf_counter()
