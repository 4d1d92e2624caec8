"""What a process costs, from /proc: memory, threads, time on a processor."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20


def resident_bytes(pid: int) -> int:
    """All of it, what is shared with others too."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


def threads(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())


def core_seconds(pid: int) -> float:
    """That the process took of processors so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Idling:
    """Of one process over some time."""

    core_share: float  # of one core
    wakeups_per_s: float  # how often a thread was given a processor


def idling(pids: "list[int]", seconds: float) -> "list[Idling]":
    """What each process does within the next `seconds`."""
    before, begin = [_scheduled(pid) for pid in pids], time.monotonic()
    time.sleep(seconds)
    after, lasted = [_scheduled(pid) for pid in pids], time.monotonic() - begin
    return [Idling((b[0] - a[0]) / 1e9 / lasted, (b[1] - a[1]) / lasted) for a, b in zip(before, after)]


def _scheduled(pid: int) -> "tuple[int, int]":
    """Nanoseconds on a processor, and how often one was given: of all threads that live."""
    on_processor, given = 0, 0
    for stat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            nanoseconds, _, slices = stat.read_text().split()
        except OSError:  # the thread has ended
            continue
        on_processor += int(nanoseconds)
        given += int(slices)
    return on_processor, given
