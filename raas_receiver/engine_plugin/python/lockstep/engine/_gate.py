"""Gate: readers of a model's weights, and one writer that goes first."""

import contextlib
import threading
import time
from typing import Callable, Iterator

from lockstep._errors import DeadlineError, StateError
from lockstep.engine._protocol import Served


class Gate:
    """Shut until a version is served. Once the writer asks, no new reader comes in, and it waits for those inside.

    A thread that is inside comes in again at once: its weights cannot change before it has left.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = threading.local()
        self._readers = 0
        self._served: "Served | None" = None  # while the gate is open
        self._closed = False

    @property
    def served(self) -> "Served | None":
        with self._changed:
            return self._served

    @contextlib.contextmanager
    def reading(self, timeout: "float | None") -> "Iterator[Served]":
        """Comes in, waiting while the gate is shut. DeadlineError, StateError (closed) otherwise."""
        depth = getattr(self._inside, "depth", 0)
        with self._changed:
            if depth == 0:
                self._inside.served = self._wait(lambda served: True, timeout)
                self._readers += 1
        self._inside.depth = depth + 1
        try:
            yield self._inside.served
        finally:
            self._inside.depth = depth
            if depth == 0:
                with self._changed:
                    self._readers -= 1
                    self._changed.notify_all()

    def wait_for(self, version: "int | None", timeout: "float | None") -> Served:
        """Waits until a version is served, or one that is ``version`` or later."""
        with self._changed:
            return self._wait(lambda served: version is None or served.version >= version, timeout)

    def shut(self, wait: bool = True) -> None:
        """For the writer: nobody comes in from here on, until ``open``, and all who were in have left when it returns;
        or the gate was closed."""
        with self._changed:
            self._served = None
            if wait:
                self._changed.wait_for(lambda: self._readers == 0 or self._closed)

    def open(self, served: Served) -> None:
        with self._changed:
            if not self._closed:
                self._served = served
            self._changed.notify_all()

    def close(self) -> None:
        """For good: whoever waits gets StateError."""
        with self._changed:
            self._served = None
            self._closed = True
            self._changed.notify_all()

    def _wait(self, enough: "Callable[[Served], bool]", timeout: "float | None") -> Served:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._closed:
                raise StateError("the follower is closed")
            if self._served is not None and enough(self._served):
                return self._served
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                there = "nothing" if self._served is None else f"version {self._served.version}"
                raise DeadlineError(f"the wanted version was not served within {timeout:g} s; {there} is")
            self._changed.wait(left)
