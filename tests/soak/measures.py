"""What a soak measures: how soon versions arrive, what daemons log, and whether processes grow."""

import os
import statistics
import time
from collections import Counter
from pathlib import Path

from checker import Tail
from footprint import threads

SETTLES_S = 60
SHORTEST_LIFE_S = 120  # behind that: what lives for less says nothing of growth
# What a median of the last fifth of a life may be above one of the first fifth. Heaps: malloc's arenas, gRPC's buffers
# and deltas are as full as the last minutes were busy. Descriptors and threads: a pull, a lane or a call more under way.
MAY_GROW = {"heap_bytes": 8 << 20, "descriptors": 8, "threads": 8}


def heap_bytes(pid: int) -> int:
    """What is its own: what is mapped of models lies in files, and comes and goes with versions."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


def percentile(values: "list[float]", of_100: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * of_100 // 100)] if values else 0.0


class Growth:
    """Of each process of the daemons, as long as it lives."""

    def __init__(self) -> None:
        self.lives: "dict[tuple[str, int], list[tuple[float, dict[str, int]]]]" = {}

    def look(self, daemons) -> None:
        for daemon in daemons:
            if not daemon.running():
                continue
            pid = daemon.process.pid
            try:
                sizes = {
                    "heap_bytes": heap_bytes(pid),
                    "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
                    "threads": threads(pid),
                }
            except OSError:  # it has ended just now
                continue
            self.lives.setdefault((daemon.name, pid), []).append((time.monotonic(), sizes))

    def grown(self) -> "list[dict]":
        """By how much, of each that lived long enough."""
        found = []
        for (name, pid), samples in self.lives.items():
            settled = [sizes for at, sizes in samples if at - samples[0][0] > SETTLES_S]
            lived = samples[-1][0] - samples[0][0]
            if lived < SETTLES_S + SHORTEST_LIFE_S:
                continue
            fifth = len(settled) // 5
            entry = {"daemon": name, "pid": pid, "minutes": round(lived / 60, 1)}
            for what in MAY_GROW:
                first, last = (
                    statistics.median(sizes[what] for sizes in part) for part in (settled[:fifth], settled[-fifth:])
                )
                entry[what] = [first, last]
            found.append(entry)
        return found

    def too_much(self) -> "list[str]":
        return [
            f"{entry['daemon']} (pid {entry['pid']}, {entry['minutes']} min): {what} from {entry[what][0]} to {entry[what][1]}"
            for entry in self.grown()
            for what, most in MAY_GROW.items()
            if entry[what][1] - entry[what][0] > most
        ]


class Logs:
    """What the daemons logged, counted."""

    BUGS = ("io_exception", "lane_exception")

    def __init__(self, daemons) -> None:
        self.tails = [Tail(daemon.log_path) for daemon in daemons]
        self.events: "Counter[str]" = Counter()
        self.pulls: "Counter[str]" = Counter()  # by mode
        self.repaired_blocks = 0

    def look(self) -> None:
        for tail in self.tails:
            for entry in tail.entries():
                if entry.get("level") in ("WARN", "ERROR", "warn", "error"):
                    self.events[entry.get("event", "")] += 1
                if entry.get("event") == "version_committed" and "mode" in entry:
                    self.pulls[entry["mode"]] += 1
                    self.repaired_blocks += entry["repaired_blocks"]


class Arrivals:
    """Seconds from publish to a version being all the way, at places that nothing is wrong with."""

    LATE_S = 60

    def __init__(self) -> None:
        self.seconds: "list[float]" = []
        self._had: "dict[str, int]" = {}
        self._late: "set[str]" = set()

    def look(self, place) -> "str | None":
        """What is wrong when a version does not come."""
        had, has, now = self._had.get(place.name, 0), place.has, time.monotonic()
        self._had[place.name] = has
        if place.fault:
            return None
        waited_for = [(v, at) for v, at in place.site.versions.items() if v > had and at >= place.calm_since]
        self.seconds += [now - at for version, at in waited_for if version <= has]
        late = [version for version, at in waited_for if version > has and now - at > self.LATE_S]
        if late and place.name not in self._late:
            self._late.add(place.name)
            return f"{place.name} has version {has}, and did not get {late[0]} in {self.LATE_S} s, with nothing wrong"
        return None
