"""What checkpoint engines share: which checkpoint they publish, and which version they read."""

import asyncio
import contextlib
import os
import shutil
import time
from typing import Callable, Tuple

from lockstep import control
from lockstep.core.errors import AbortedError, BadDataError, DeadlineError, Error, ResourceExhaustedError
from lockstep.engine import Replica, published

_POLL_SECONDS = 0.01
_STATUS_SECONDS = 5.0


def check_reachable(agent: str, its_host: str, here: str) -> None:
    """BadDataError: a receiver on the host ``here`` cannot call ``agent``, which listens on its own host alone."""
    if agent.startswith("unix:") and here != its_host:
        raise BadDataError(
            f"this rollout is on host {here}, and the agent on {its_host}, where it has no port: give the engine `port`, "
            "and `agent` and `receiver` certificates (tls_cert, tls_key, tls_ca) or allow_insecure_network"
        )


def check_room(replica: str, model_bytes: int) -> None:
    """ResourceExhaustedError: the file system of ``replica``, the receiver's directory of a model, is too small for the
    two copies that it keeps."""
    if published(replica) is not None:
        return
    root = os.path.dirname(replica)
    files: "dict[Tuple[int, int], int]" = {}  # a file may have several names
    for path, _, names in os.walk(replica):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # the receiver is at work
                info = os.lstat(os.path.join(path, name))
                files[info.st_dev, info.st_ino] = info.st_blocks * 512
    room = shutil.disk_usage(root).free + sum(files.values())
    if room < 2 * model_bytes:
        raise ResourceExhaustedError(
            f"{root}: {room / 1e9:.2f} GB are free where two copies of the model are to be kept, {2 * model_bytes / 1e9:.2f} GB; "
            f"mount -o remount,size=... the tmpfs, run the container with a larger one (docker run --shm-size), or give "
            "the receiver another root"
        )


def _why(replica: str, receiver: "str | None") -> str:
    """What the receiver of the directory ``replica`` says of it."""
    try:
        for model in control.Receiver(receiver, timeout=_STATUS_SECONDS).status().models:
            if os.path.dirname(model.current_path) == replica:
                says = f", and says: {model.last_error}" if model.last_error else ""
                held = f"version {model.held.version}" if model.held.version else "nothing"
                return f"its receiver holds {held}, is in state {model.state}{says}"
    except (Error, OSError):
        pass  # what is waited for in vain is the error
    return "the receiver's `lockstepctl status` says why"


class Awaited:
    """The version in the receiver's directory ``path`` that is ``wanted``.

    Args:
        what: the version, for the text of errors.
        wanted: whether it is the one. Asked once for each version that is seen.
        timeout_s: seconds from now.
        receiver: the control plane of the receiver, which is asked why a version does not come; None: as
            ``control.Receiver``.
    """

    def __init__(
        self,
        path: str,
        what: str,
        wanted: "Callable[[Replica], bool]",
        timeout_s: float,
        receiver: "str | None" = None,
    ) -> None:
        self._path, self._what, self._wanted, self._receiver = path, what, wanted, receiver
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
                f"{self._path}: {self._what} was not published within {self._timeout_s:g} s, {self._have} is there; "
                f"{_why(self._path, self._receiver)}"
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
    path: str,
    what: str,
    wanted: "Callable[[Replica], bool]",
    awaited: "Callable[[], bool]",
    timeout_s: float,
    receiver: "str | None" = None,
) -> Replica:
    """As ``Awaited(path, what, wanted, timeout_s, receiver).wait()``. AbortedError: ``awaited`` says that the caller no
    longer waits."""
    version = Awaited(path, what, wanted, timeout_s, receiver)
    while True:
        replica = version.open()
        if replica is not None:
            return replica
        if not awaited():
            raise AbortedError(f"{path}: {what} was aborted before it came: the trainer began another update")
        await asyncio.sleep(_POLL_SECONDS)
