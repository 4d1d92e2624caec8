"""What a soak measures, and what it comes to (soak.py): how soon versions arrive, what daemons log, whether they grow."""

import os
import re
import statistics
import time
from collections import Counter
from pathlib import Path

from checker import Tail

LATE_S = 60
P99_S = 10
SETTLES_S = 60
# After that. In a shorter life the first delta of a whole model, which is a step to where a heap stays, looks like growth.
SHORTEST_LIFE_S = 480
# What the median of a life's last fifth may be above that of its first. A heap: malloc's arenas, gRPC's buffers and the
# deltas kept are as full as the last minutes were busy. Descriptors, threads: a pull, lanes and calls more under way.
MAY_GROW = {"heap_bytes": 8 << 20, "descriptors": 8, "threads": 8}
BUGS = ("io_exception", "lane_exception")  # events


def sizes_of(pid: int) -> "dict[str, int]":
    """The heap is what is its own: what is mapped of models lies in files, and comes and goes with versions."""
    heap, threads = (
        int(re.search(rf"{of}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) for of in ("RssAnon", "Threads")
    )
    return {"heap_bytes": heap << 10, "descriptors": len(os.listdir(f"/proc/{pid}/fd")), "threads": threads}


class Growth:
    """Of each process of the daemons, as long as it lives."""

    def __init__(self) -> None:
        self._lives: "dict[tuple[str, int], list[tuple[float, dict[str, int]]]]" = {}

    def look(self, daemons) -> None:
        for daemon in filter(lambda daemon: daemon.running(), daemons):
            pid = daemon.process.pid
            try:
                sizes = sizes_of(pid)
            except (OSError, TypeError):
                continue  # it has ended just now
            self._lives.setdefault((daemon.name, pid), []).append((time.monotonic(), sizes))

    def grown(self) -> "list[dict]":
        """[before, after] of each process that lived long enough."""
        found = []
        for (name, pid), samples in self._lives.items():
            settled = [sizes for at, sizes in samples if at - samples[0][0] > SETTLES_S]
            lasted_s, fifth = samples[-1][0] - samples[0][0], len(settled) // 5
            if lasted_s < SETTLES_S + SHORTEST_LIFE_S:
                continue
            medians = {
                what: [statistics.median(sizes[what] for sizes in part) for part in (settled[:fifth], settled[-fifth:])]
                for what in MAY_GROW
            }
            found.append({"daemon": name, "pid": pid, "minutes": round(lasted_s / 60, 1), **medians})
        return found


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


def percentile(values: "list[float]", of_100: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * of_100 // 100)] if values else 0.0


def report_of(soak) -> dict:
    soak.logs.look()
    seconds = {"after faults": [waited for waited, _, _ in soak.converged], "from publish": soak.arrivals.seconds}
    seconds["all"] = seconds["after faults"] + seconds["from publish"]
    convergence = {
        what: {"count": len(values), "p50": percentile(values, 50), "p99": percentile(values, 99)}
        for what, values in seconds.items()
    }
    grown = soak.growth.grown()
    failures = soak.failures + [
        f"{one['daemon']} (pid {one['pid']}, {one['minutes']} min) grew: {what} from {one[what][0]} to {one[what][1]}"
        for one in grown
        for what, most in MAY_GROW.items()
        if one[what][1] - one[what][0] > most
    ]
    failures += [f"a daemon logged {event}" for event in BUGS if soak.logs.events[event]]
    failures += [
        f"convergence, {what}: p99 is {figure['p99']:.1f} s, not under {P99_S} s"
        for what, figure in convergence.items()
        if figure["p99"] >= P99_S
    ]
    return {
        "seed": soak.options.seed,
        "minutes": soak.options.minutes,
        "versions": sum(len(site.versions) for site in soak.sites),
        "pulls": dict(soak.logs.pulls),
        "faults": dict(sorted(soak.faults.items())),
        "missed": dict(sorted(soak.missed.items())),
        "not_run": soak.not_run,
        "repaired_blocks": soak.logs.repaired_blocks,
        "checked": soak.checked,
        "wrong": soak.wrong,
        "convergence_s": convergence,
        "slowest": sorted(soak.converged, reverse=True)[:10],
        "growth": grown,
        "logged": dict(soak.logs.events),
        "failures": failures,
        "passed": not failures and not soak.wrong,
    }


def show(report: dict) -> None:
    """The report for people."""
    faults, checked = report["faults"], report["checked"]
    print(f"soak           {report['minutes']:g} minutes, seed {report['seed']}, {report['versions']} versions")
    print(f"pulls          {report['pulls']}, {report['repaired_blocks']} blocks repaired")
    print(f"faults         {sum(faults.values())}, of {len(faults)} kinds")
    for name, count in faults.items():
        print(f"{count:10}  {name}")
    for name, count in report["missed"].items():
        print(f"{count:10}  times not, for its moment did not come: {name}")
    for name in report["not_run"]:
        print(f"   NOT RUN  {name}: not possible here")
    print(f"wrong commits  {len(report['wrong'])}, of {checked['readings']} readings, {checked['bytes'] >> 20} MiB")
    for what, figure in report["convergence_s"].items():
        print(f"convergence    p50 {figure['p50']:.2f} s, p99 {figure['p99']:.2f} s: {what}, {figure['count']} times")
    for seconds, place, kind in report["slowest"][:3]:
        print(f"{seconds:10.1f} s  {place} after: {kind}")
    if not report["growth"]:
        print("growth         not measured: no process lived for long")
    for what, most in MAY_GROW.items() if report["growth"] else ():
        one = max(report["growth"], key=lambda one: one[what][1] - one[what][0])
        first, last = one[what]
        print(f"growth         {what} {first:.0f} to {last:.0f}, {one['daemon']}: the most; it may be {most}")
    print(f"logged         {report['logged']}")
    for text in report["failures"]:
        print(f"FAILED {text}")
    for text in report["wrong"]:
        print(f"error: wrong commit: {text}")
    print("passed" if report["passed"] else "failed")
