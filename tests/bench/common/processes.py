"""What the system says of a process, and what a receiver shows in its directory."""

import os
import re
import time
from pathlib import Path

POLL_S = 0.0005


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
