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


async def open_replica(
    path: str, what: str, wanted: Callable[[Replica], bool], awaited: Callable[[], bool], timeout_s: float
) -> Replica:
    """The version in the receiver's directory ``path`` that is ``wanted``, as soon as it is published there.

    Args:
        what: the version, for the text of errors.
        wanted: whether it is the one. Asked once for each version that is seen.
        awaited: whether anybody still wants it.

    Raises:
        AbortedError: nobody does.
        DeadlineError: it did not come within ``timeout_s`` seconds; the text has what is there instead.
    """
    deadline = time.monotonic() + timeout_s
    seen, have = None, "nothing"
    while True:
        there = published(path)
        if there is not None and there != seen:
            replica = Replica(path)
            if wanted(replica):
                return replica
            seen, have = there, f"version {replica.version} of run {replica.run[:8]}"
            replica.close()
        if not awaited():
            raise AbortedError(f"{path}: {what} was given up before it came: the trainer began another update")
        if time.monotonic() >= deadline:
            raise DeadlineError(
                f"{path}: {what} was not published within {timeout_s:g} s, {have} is there; the receiver's "
                "`lockstepctl status` says why"
            )
        await asyncio.sleep(_POLL_SECONDS)
