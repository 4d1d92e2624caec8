"""Ctrl-C while ranks exchange bytes: it waits for the end, which the other ranks need as much as this one."""

import contextlib
import signal
import threading
from typing import Any, Iterator


@contextlib.contextmanager
def delayed_interrupt() -> "Iterator[None]":
    """Inside the block the first SIGINT is only noted, and handled after it; a second one is handled at once.

    Does nothing outside the main thread, where Python never handles signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: "list[tuple[int, Any]]" = []

    def note(number: int, frame: Any) -> None:
        noted.append((number, frame))
        signal.signal(signal.SIGINT, before)

    before = signal.getsignal(signal.SIGINT)
    if not callable(before):  # ignored, the system's default, or not Python's
        yield
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if noted:
            before(*noted[0])
