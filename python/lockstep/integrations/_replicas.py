"""What checkpoint engines have in common: whose weights they publish, and which version they read."""

import asyncio
import os
import time
from typing import Callable

from lockstep.core.errors import AbortedError, DeadlineError
from lockstep.engine import Replica, published

_POLL_SECONDS = 0.01


def local_checkpoint(checkpoint: str) -> str:
    """The directory of ``checkpoint``, which is one, or a model of the HuggingFace hub that was downloaded before."""
    if os.path.isdir(checkpoint):
        return checkpoint
    from huggingface_hub import snapshot_download

    return str(snapshot_download(checkpoint, local_files_only=True))


class Awaited:
    """The version in the receiver's directory ``path`` that is ``wanted``.

    Args:
        what: the version, for the text of errors.
        wanted: whether it is the one. Asked once for each version that is seen.
        timeout_s: seconds from now.
    """

    def __init__(self, path: str, what: str, wanted: "Callable[[Replica], bool]", timeout_s: float) -> None:
        self._path, self._what, self._wanted = path, what, wanted
        self._timeout_s, self._deadline = timeout_s, time.monotonic() + timeout_s
        self._seen: "object | None" = None
        self._have = "nothing"

    def open(self) -> "Replica | None":
        """It, when it is published now. DeadlineError: the time is over; the text has what is there instead."""
        there = published(self._path)
        if there is not None and there != self._seen:
            replica = Replica(self._path)
            if self._wanted(replica):
                return replica
            self._seen, self._have = there, f"version {replica.version} of run {replica.run[:8]}"
            replica.close()
        if time.monotonic() >= self._deadline:
            raise DeadlineError(
                f"{self._path}: {self._what} was not published within {self._timeout_s:g} s, {self._have} is there; the "
                "receiver's `lockstepctl status` says why"
            )
        return None

    def wait(self) -> Replica:
        """It, as soon as it is published. Raises as ``open``."""
        while True:
            replica = self.open()
            if replica is not None:
                return replica
            time.sleep(_POLL_SECONDS)


async def open_replica(
    path: str, what: str, wanted: "Callable[[Replica], bool]", awaited: "Callable[[], bool]", timeout_s: float
) -> Replica:
    """As ``Awaited(path, what, wanted, timeout_s).wait()``, as long as ``awaited`` says that anybody still wants it; then
    AbortedError."""
    version = Awaited(path, what, wanted, timeout_s)
    while True:
        replica = version.open()
        if replica is not None:
            return replica
        if not awaited():
            raise AbortedError(f"{path}: {what} was given up before it came: the trainer began another update")
        await asyncio.sleep(_POLL_SECONDS)
