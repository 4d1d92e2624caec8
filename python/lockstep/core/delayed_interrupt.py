"""Ctrl-C in the middle of what must not stop there: it waits for the end."""

import contextlib
import signal
import threading
from typing import Any, Iterator

_blocks: "list[list[Any]]" = []  # what was noted in each of those that the main thread is in


def interrupts_noted() -> int:
    """How many SIGINT came that blocks around this thread's work will handle: the main thread's."""
    return sum(map(len, _blocks)) if threading.current_thread() is threading.main_thread() else 0


@contextlib.contextmanager
def delayed_interrupt(*, second_at_once: bool = False) -> "Iterator[None]":
    """Inside the block SIGINT is only noted, and handled after it, once; with ``second_at_once`` the second one is
    handled where it comes.

    Does nothing outside the main thread, where Python never handles signals.
    """
    before = signal.getsignal(signal.SIGINT)
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or not callable(before):  # ignored, the system's default, or not Python's
        yield
        return

    noted: "list[Any]" = []

    def note(number: int, frame: Any) -> None:
        noted.append((number, frame))
        if second_at_once:
            signal.signal(signal.SIGINT, before)

    _blocks.append(noted)
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        _blocks.pop()  # first: a second SIGINT may raise anywhere
        signal.signal(signal.SIGINT, before)
        if noted:
            before(*noted[0])
