"""Locks (flock) of files, which the kernel takes from a process that ends, however it ends. A process that is forked
off, such as a data loader's worker, has no part in them."""

import fcntl
import os
from typing import Dict, Set

from lockstep.core.forked import close_after_fork


class _Held:
    def __init__(self) -> None:
        self.fds: "Set[int]" = set()
        self.kept: "Dict[str, int]" = {}
        close_after_fork(self)

    def _close_after_fork(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()
        self.kept.clear()


_held = _Held()


def lock(path: str, shared: bool = False) -> "int | None":
    """Locks a file, and creates it if it is missing. None: another lock on it excludes this one.

    The returned descriptor holds the lock until ``unlock``. A process that inherits it holds the lock until its end.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    _held.fds.add(fd)
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        unlock(fd)
        return None
    return fd


def unlock(fd: int) -> None:
    """Gives up this process' part in a lock."""
    _held.fds.discard(fd)
    os.close(fd)


def keep(path: str, fd: int) -> None:
    """Has this process hold the lock of ``path``, which ``fd`` is, to its end, by one descriptor however often it asks."""
    before = _held.kept.get(path)
    if before is not None and os.path.samestat(os.fstat(before), os.fstat(fd)):
        unlock(fd)
        return
    _held.kept[path] = fd
    if before is not None:  # of a file that was removed
        unlock(before)
