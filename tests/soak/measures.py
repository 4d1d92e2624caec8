"""What a soak measures (soak.py): how soon versions arrive, what daemons log, and whether their processes grow."""

import os
import statistics
import time
from collections import Counter
from pathlib import Path

from checker import Tail
from footprint import threads

LATE_S = 60
SETTLES_S = 60
# After that. In a shorter life the first delta of a whole model, which is a step to where a heap stays, looks like growth.
SHORTEST_LIFE_S = 480
# What the median of a life's last fifth may be above that of its first. A heap: malloc's arenas, gRPC's buffers and the
# deltas kept are as full as the last minutes were busy. Descriptors, threads: a pull, lanes and calls more under way.
MAY_GROW = {"heap_bytes": 8 << 20, "descriptors": 8, "threads": 8}
BUGS = ("io_exception", "lane_exception")  # events


def percentile(values: "list[float]", of_100: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * of_100 // 100)] if values else 0.0


def sizes_of(pid: int) -> "dict[str, int]":
    """The heap is what is its own: what is mapped of models lies in files, and comes and goes with versions."""
    status = Path(f"/proc/{pid}/status").read_text()
    heap = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon:"))
    return {"heap_bytes": heap, "descriptors": len(os.listdir(f"/proc/{pid}/fd")), "threads": threads(pid)}


class Growth:
    """Of each process of the daemons, as long as it lives."""

    def __init__(self) -> None:
        self._lives: "dict[tuple[str, int], list[tuple[float, dict[str, int]]]]" = {}

    def look(self, daemons) -> None:
        for daemon in filter(lambda daemon: daemon.running(), daemons):
            pid = daemon.process.pid
            try:
                sizes = sizes_of(pid)
            except (OSError, StopIteration):
                continue  # it has ended just now
            self._lives.setdefault((daemon.name, pid), []).append((time.monotonic(), sizes))

    def grown(self) -> "list[dict]":
        """[before, after] of each process that lived long enough."""
        found = []
        for (name, pid), samples in self._lives.items():
            settled = [sizes for at, sizes in samples if at - samples[0][0] > SETTLES_S]
            if samples[-1][0] - samples[0][0] < SETTLES_S + SHORTEST_LIFE_S:
                continue
            fifth = len(settled) // 5
            entry = {"daemon": name, "pid": pid, "minutes": round((samples[-1][0] - samples[0][0]) / 60, 1)}
            for what in MAY_GROW:
                parts = (settled[:fifth], settled[-fifth:])
                entry[what] = [statistics.median(sizes[what] for sizes in part) for part in parts]
            found.append(entry)
        return found

    def too_much(self) -> "list[str]":
        return [
            f"{one['daemon']} (pid {one['pid']}, {one['minutes']} min) grew: {what} from {one[what][0]} to {one[what][1]}"
            for one in self.grown()
            for what, most in MAY_GROW.items()
            if one[what][1] - one[what][0] > most
        ]


class Logs:
    """What the daemons logged, counted."""

    def __init__(self, daemons) -> None:
        self._tails = [Tail(daemon.log_path) for daemon in daemons]
        self.events: "Counter[str]" = Counter()  # warnings and errors
        self.pulls: "Counter[str]" = Counter()  # by mode
        self.repaired_blocks = 0

    def look(self) -> None:
        for entry in (entry for tail in self._tails for entry in tail.entries()):
            if entry.get("level") in ("warn", "error"):
                self.events[entry["event"]] += 1
            if entry.get("event") == "version_committed" and "mode" in entry:
                self.pulls[entry["mode"]] += 1
                self.repaired_blocks += entry["repaired_blocks"]


class Arrivals:
    """Seconds from a publish's begin until the version is all the way at a place, where nothing is wrong."""

    def __init__(self) -> None:
        self.seconds: "list[float]" = []
        self._had: "dict[str, int]" = {}

    def look(self, place) -> "str | None":
        """What is wrong when a version does not come."""
        had, has, now = self._had.get(place.name, 0), place.has, time.monotonic()
        self._had[place.name] = has
        waited_for = [(v, at) for v, at in place.site.versions.items() if v > had and at >= place.calm_since]
        if place.fault or not waited_for:
            return None
        self.seconds += [now - at for version, at in waited_for if version <= has]
        late = [version for version, at in waited_for if version > has and now - at > LATE_S]
        return f"{place.name} has not got version {late[0]} in {LATE_S} s, with nothing wrong" if late else None
