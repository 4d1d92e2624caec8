"""Gate: readers of a model's weights, and one writer that goes first."""

import contextlib
import contextvars
import threading
import time
from typing import Callable, Iterator, Tuple

from lockstep.core.errors import DeadlineError, StateError
from lockstep.engine._served import Served


class _Entry:
    """A reader that came in. It belongs to no thread: wherever it leaves, it is this one that has left."""

    def __init__(self, gate: "Gate", served: Served) -> None:
        self.gate: "Gate | None" = gate  # None: has left
        self.served = served


# What came in by this context: by a task and those that it made, or by a thread outside of tasks. Some may have left
# elsewhere since, which this context cannot see.
_came_in: "contextvars.ContextVar[Tuple[_Entry, ...]]" = contextvars.ContextVar("lockstep_came_in", default=())


class Gate:
    """Shut until a version is served. Once the writer asks, no new reader comes in, and it waits for those inside.

    Every entry counts by itself, wherever it is left and in whatever order: threads, tasks and generators may mix.

    An entry passes while the writer waits when its context (``contextvars``) has another entry inside: waiting for
    itself it would wait for ever, and weights cannot change before the other one has left. A nested entry, and another
    generator's that runs in the same context, look alike; both pass, and the writer waits for both. So generators of
    one context that always overlap keep the writer out, until the receiver's hold times out; tasks and threads of
    their own do not. A thread that a reader starts has another context: the reader must not wait for it to come in.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._served: "Served | None" = None  # while the gate is open
        self._refused: "str | None" = None  # why no version comes; until one does
        self._closed: "str | None" = None  # why

    @property
    def served(self) -> "Served | None":
        with self._changed:
            return self._served

    @contextlib.contextmanager
    def reading(self, timeout: "float | None") -> "Iterator[Served]":
        """Comes in, waiting while the gate is shut. DeadlineError, StateError (closed, refused) otherwise."""
        mine = self._enter(timeout)
        try:
            _came_in.set((*_inside(), mine))
            yield mine.served
        finally:
            self._leave(mine)
            _came_in.set(_inside())  # perhaps another context than above

    def wait_for(self, version: "int | None", timeout: "float | None") -> Served:
        """Waits until a version is served, or one that is ``version`` or later."""
        with self._changed:
            return self._wait(lambda served: version is None or served.version >= version, timeout)

    def shut(self, wait: bool = True) -> None:
        """For the writer: nobody comes in from here on, until ``open``, and all who were in have left when it returns.
        StateError: the gate was closed, and there may be readers inside."""
        with self._changed:
            self._served = None
            if wait:
                self._changed.wait_for(lambda: self._readers == 0 or self._closed is not None)
            if self._closed is not None:
                raise StateError(self._closed)

    def open(self, served: Served) -> None:
        with self._changed:
            self._refused = None
            if self._closed is None:
                self._served = served
            self._changed.notify_all()

    def refuse(self, why: "str | None") -> None:
        """With a reason nobody waits while it is shut, until it is opened: they get StateError. None: they wait."""
        with self._changed:
            self._refused = why
            self._changed.notify_all()

    def close(self, why: str = "the follower is closed") -> None:
        """For good: those who wait get StateError."""
        with self._changed:
            self._served = None
            self._closed = why
            self._changed.notify_all()

    def close_after_fork(self, why: str) -> None:
        """Closes it in a process that was just forked: the thread that had the lock is not there."""
        self._changed = threading.Condition()
        self.close(why)

    def _enter(self, timeout: "float | None") -> _Entry:
        with self._changed:
            other = next((entry for entry in _inside() if entry.gate is self), None)
            mine = _Entry(self, other.served if other else self._wait(lambda served: True, timeout))
            self._readers += 1
            return mine

    def _leave(self, mine: _Entry) -> None:
        with self._changed:
            mine.gate = None
            self._readers -= 1
            self._changed.notify_all()

    def _wait(self, enough: "Callable[[Served], bool]", timeout: "float | None") -> Served:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._closed is not None:
                raise StateError(self._closed)
            if self._served is not None and enough(self._served):
                return self._served
            if self._refused is not None and self._served is None:
                raise StateError(self._refused)
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                there = "nothing" if self._served is None else f"version {self._served.version}"
                raise DeadlineError(f"the wanted version was not served within {timeout:g} s; {there} is")
            self._changed.wait(left)


def _inside() -> "Tuple[_Entry, ...]":
    """This context's entries that have not left."""
    return tuple(entry for entry in _came_in.get() if entry.gate is not None)
