"""A process that is not a child of this one."""

import contextlib
import os
import select
import signal
from typing import Any


class Process:
    """A process by its descriptor, for its number becomes another's. To be closed, as by ``with``."""

    def __init__(self, pid: int) -> None:
        self._fd: "int | None" = None  # it has ended, and was waited for
        with contextlib.suppress(ProcessLookupError):
            self._fd = os.pidfd_open(pid)

    def ended(self, seconds: float) -> bool:
        """Whether it has ended, or does in that time."""
        if self._fd is None:
            return True
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, if it has not ended."""
        with contextlib.suppress(ProcessLookupError):
            if self._fd is not None:
                signal.pidfd_send_signal(self._fd, number)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: Any) -> None:
        if self._fd is not None:
            os.close(self._fd)
