"""The memory of a process, for test_log.py, test_resets.py and tests/layouts/test_remote_ranks.py."""

import threading
from pathlib import Path


def memory_of(field: str, pid: "int | str" = "self") -> int:
    """Bytes of a field of the process's status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field + ":"))


class PeakMemory(threading.Thread):
    """The most private memory that a process has while the block runs, in bytes: `peak`, and `grown` beyond what it had."""

    def __init__(self, pid: "int | str" = "self") -> None:
        super().__init__(daemon=True)
        self._pid, self._done = pid, threading.Event()
        self._before = self.peak = memory_of("RssAnon", pid)

    @property
    def grown(self) -> int:
        return self.peak - self._before

    def run(self) -> None:
        while not self._done.wait(0.001):
            self._look()

    def _look(self) -> None:
        self.peak = max(self.peak, memory_of("RssAnon", self._pid))

    def __enter__(self) -> "PeakMemory":
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._look()
        self._done.set()
        self.join()
