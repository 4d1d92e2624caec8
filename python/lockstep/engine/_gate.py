"""Gate: readers of a model's weights, and one writer that goes first."""

import asyncio
import contextvars
import threading
import time
from typing import Any, Callable, Tuple

from lockstep.core import arguments
from lockstep.core.errors import DeadlineError, StateError
from lockstep.engine._served import Served

_SECONDS_BETWEEN_LOOKS = 0.1


class _Entry:
    """A reader that came in. It belongs to no thread: wherever it leaves, it is this one that has left."""

    def __init__(self, gate: "Gate | None", served: Served) -> None:
        self.gate = gate  # None: has left
        self.served = served


# What came in by this context: by a task and those that it made, or by a thread outside of tasks. Some may have left
# elsewhere since, which this context cannot see.
_came_in: "contextvars.ContextVar[Tuple[_Entry, ...]]" = contextvars.ContextVar("lockstep_came_in", default=())


class Reading:
    """A reader, inside between entering and leaving: by ``with``, or by ``async with``, which lets the event loop go on
    while it waits. Used once."""

    def __init__(self, gate: "Gate", timeout: "float | None") -> None:
        self._gate = gate
        self._timeout = timeout
        self._mine: "_Entry | None" = None

    def __enter__(self) -> Served:
        return self._entered(self._gate.wait(self._enter, self._timeout))

    async def __aenter__(self) -> Served:
        return self._entered(await self._gate.wait_async(self._enter, self._timeout))

    def __exit__(self, *_: Any) -> None:
        assert self._mine is not None
        self._gate.leave(self._mine)
        _came_in.set(_inside())  # perhaps another context than that of entering

    async def __aexit__(self, *_: Any) -> None:
        self.__exit__()

    def _enter(self) -> "_Entry | None":
        return self._gate.enter(next((entry for entry in _inside() if entry.gate is self._gate), None))

    def _entered(self, mine: _Entry) -> Served:
        self._mine = mine
        _came_in.set((*_inside(), mine))
        return mine.served


class Gate:
    """Shut until a version is served. Once the writer asks, no new reader comes in, and it waits for those inside.

    Every entry counts by itself, wherever it is left and in whatever order: threads, tasks and generators may mix.

    While the writer waits, an entry still passes if its context (``contextvars``) has another entry inside. Otherwise
    it would wait for itself for ever; and weights cannot change before the other entry has left. A nested entry looks
    like one of another generator in the same context: both pass, and the writer waits for both. So generators of one
    context that always overlap keep the writer out, until the receiver's pause times out; tasks and threads of their own
    do not. A thread that a reader starts has another context: the reader must not wait for it to come in.

    Args:
        readers: False: no reader uses this gate, and the writer waits for none.
    """

    def __init__(self, readers: bool = True) -> None:
        self._guards = readers
        self._changed = threading.Condition()
        self._wakers: "set[Callable[[], None]]" = set()  # of tasks that wait
        self._readers = 0
        self._served: "Served | None" = None  # while the gate is open
        self._refused: "str | None" = None  # why no version comes; until one does
        self._closed: "str | None" = None  # why

    @property
    def served(self) -> "Served | None":
        with self._changed:
            return self._served

    @property
    def readers(self) -> int:
        """How many are inside."""
        with self._changed:
            return self._readers

    def reading(self, timeout: "float | None") -> Reading:
        """A reader. It waits while the gate is shut, on entering. DeadlineError, StateError (closed, refused, or it
        would block a running event loop) otherwise."""
        return Reading(self, timeout)

    def wait_for(self, version: "int | None", timeout: "float | None", after: "Served | None" = None) -> Served:
        """Waits until a version is served that is not ``after``, and is ``version`` or later. Errors as ``reading``'s."""
        if version is not None:
            version = arguments.version_number(version)

        def enough() -> "Served | None":
            there = self._served
            if there is None or there == after or (version is not None and there.version < version):
                return None
            return there

        served: Served = self.wait(enough, timeout)
        return served

    # --- the writer's ---

    def shut(self, given_up: "Callable[[], bool]" = lambda: False) -> None:
        """Lets no new reader in until ``open``, and returns when all readers have left.

        Raises:
            StateError: the gate was closed, or the writer has ``given_up``, which is asked now and then. Readers may
                still be inside.
        """
        with self._changed:
            self._served = None
            while self._readers and self._closed is None:
                if given_up():
                    raise StateError(f"{self._readers} of its readers did not leave")
                self._changed.wait(_SECONDS_BETWEEN_LOOKS)
            if self._closed is not None:
                raise StateError(self._closed)

    def open(self, served: Served) -> None:
        with self._changed:
            self._refused = None
            if self._closed is None:
                self._served = served
            self._tell()

    def refuse(self, why: "str | None") -> None:
        """With a reason, readers get StateError while the gate is shut, until it is opened. None: they wait."""
        with self._changed:
            self._refused = why
            self._tell()

    def close(self, why: str = "the follower is closed") -> None:
        """Shuts it for good: waiting readers get StateError."""
        with self._changed:
            self._served = None
            self._closed = why
            self._tell()

    def close_after_fork(self, why: str) -> None:
        """Closes it in a process that was just forked: the thread that had the lock is not there."""
        self._changed = threading.Condition()
        self._wakers = set()
        self.close(why)

    # --- a Reading's ---

    def enter(self, other: "_Entry | None") -> "_Entry | None":
        """One more inside; None: not now. ``other``: an entry of the same context that is inside."""
        served = other.served if other else self._served
        if served is None:
            return None
        self._readers += 1
        return _Entry(self, served)

    def leave(self, mine: _Entry) -> None:
        with self._changed:
            mine.gate = None
            self._readers -= 1
            self._tell()

    def wait(self, attempt: "Callable[[], Any]", timeout: "float | None") -> Any:
        """What ``attempt`` gives, called with the lock, as soon as that is something."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while True:
                done = self._try(attempt)
                if done is not None:
                    return done
                left = self._left(deadline, timeout)
                if self._guards and _loop_runs():
                    raise StateError(
                        "no version is served just now, and to wait would stop the running event loop, perhaps for "
                        "ever: use `async with follower.serving()`, or another thread"
                    )
                self._changed.wait(left)

    async def wait_async(self, attempt: "Callable[[], Any]", timeout: "float | None") -> Any:
        """The same, for a task: its loop goes on meanwhile."""
        deadline = None if timeout is None else time.monotonic() + timeout
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(changed.set)
            except RuntimeError:
                pass  # the loop is closed: no task waits

        try:
            while True:
                with self._changed:
                    done = self._try(attempt)
                    if done is not None:
                        return done
                    left = self._left(deadline, timeout)
                    changed.clear()
                    self._wakers.add(wake)
                try:
                    await asyncio.wait_for(changed.wait(), left)
                except asyncio.TimeoutError:
                    pass  # the next look says so
        finally:
            with self._changed:
                self._wakers.discard(wake)

    def _try(self, attempt: "Callable[[], Any]") -> Any:
        if self._closed is not None:
            raise StateError(self._closed)
        done = attempt()
        if done is None and self._refused is not None and self._served is None:
            raise StateError(self._refused)
        return done

    def _left(self, deadline: "float | None", timeout: "float | None") -> "float | None":
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            there = "nothing" if self._served is None else f"version {self._served.version}"
            raise DeadlineError(f"the wanted version was not served within {timeout:g} s; {there} is")
        return left

    def _tell(self) -> None:
        self._changed.notify_all()
        for wake in self._wakers:
            wake()


def _loop_runs() -> bool:
    """Whether this thread runs an event loop just now."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _inside() -> "Tuple[_Entry, ...]":
    """This context's entries that have not left."""
    return tuple(entry for entry in _came_in.get() if entry.gate is not None)
