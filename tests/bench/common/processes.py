"""What the system says of a process, and what a receiver shows in its directory."""

import contextlib
import os
import re
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

POLL_S = 0.0005
SAMPLE_S = 0.002


def cpu_s(pid: int) -> float:
    """CPU time of a process, in the kernel too, with all threads that it has or had; in nanoseconds' resolution."""
    return time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid(3) would name


def memory_bytes(pid: int) -> "dict[str, int]":
    """Resident memory by kind: RssAnon, RssFile, RssShmem."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines if line.startswith("Rss")}


class PeakMemory:
    """Within a with block: watches processes, and keeps the most that each had beyond shared memory, in bytes."""

    def __init__(self, pids: "dict[str, int]") -> None:
        self._pids = pids
        self.peaks = dict.fromkeys(pids, 0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        self._look()
        while not self._ended.wait(SAMPLE_S):
            self._look()

    def _look(self) -> None:
        for name, pid in self._pids.items():
            now = memory_bytes(pid)
            self.peaks[name] = max(self.peaks[name], now["RssAnon"] + now["RssFile"])

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()


@contextlib.contextmanager
def scraped(daemons: "Iterable[object]") -> "Iterator[None]":
    """As by Prometheus, at once and then each second, as long as this lasts."""
    over = threading.Event()

    def scrape() -> None:
        while True:
            for daemon in daemons:
                urllib.request.urlopen(f"http://{daemon.addresses['metrics']}/metrics").read()
            if over.wait(1.0):
                return

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


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
