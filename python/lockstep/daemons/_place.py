"""Where one daemon of this host and user lives: a directory with its sockets, its log, and what says how it was started.

    /dev/shm/lockstep-<uid>/<name>/
        lock                          held (flock) by the daemon as long as it lives: it is its standard input
        control.sock, addresses.json  what the daemon itself makes
        log                           appended by every daemon that was started here
        log.1                         what was in it before, once that was much
        started.json                  version and configuration of the newest
        owners                        held (shared flock) by the daemon's owners: it ends with the last one (--owners)

It is in memory: that belongs to this host alone, logins and services see the same, and no job removes old files there.
It is open to this user alone (mode 0700): a user that could put a socket here would get the weights, or give other
ones.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
from typing import Any, NamedTuple

from lockstep.core import places
from lockstep.core.errors import BadDataError, Error, IoError
from lockstep.daemons._locks import lock

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_LONG_LOG_BYTES = 16 << 20
_LOG_TAIL_LINES = 20
_LOG_TAIL_BYTES = 16 * 1024


class Running(NamedTuple):
    """A daemon that listens."""

    pid: int
    addresses: "dict[str, str]"  # as it announces them (docs/reference/daemons.md)
    started: "dict[str, str]"  # how: see Command.description


class Place:
    """The directory of the daemon ``name``, made where it is missing.

    Raises:
        BadDataError: the name is none.
        PermissionDeniedError: the directory is another user's, or open to others.
        IoError: it cannot be made.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise BadDataError(f"name is {name!r}; give 1 to 64 letters, digits, '.', '_' and '-'")
        self.path = os.path.join(places.own(), name)
        for path in (os.path.dirname(self.path), self.path):
            _make_private(path)

    def file(self, name: str) -> str:
        """The path of a file in the directory."""
        return os.path.join(self.path, name)

    @property
    def control(self) -> str:
        """The daemon's control socket."""
        return self.file("control.sock")

    def lock(self) -> "int | None":
        """The lock, for a daemon to inherit. None: a daemon lives here, or one is being started."""
        return lock(self.file("lock"))

    def own(self) -> "int | None":
        """The lock of an owner, for this process to keep. None: the daemon has seen its last owner, and is ending."""
        return lock(self.file("owners"), shared=True)

    def prepare(self, started: "dict[str, str]") -> None:
        """Removes where a daemon that was killed has listened, and notes how the next one is started. REQUIRES the
        lock."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.file("addresses.json"))
        with open(self.file("started.json.new"), "w") as file:
            json.dump(started, file)
        os.replace(self.file("started.json.new"), self.file("started.json"))

    def running(self) -> "Running | None":
        """The daemon that listens here. That one does, and which, is the kernel's word: what a daemon left that was killed
        counts for nothing."""
        pid = places.listener(self.control)
        if pid is None:
            return None
        try:  # in this order: a daemon that listens was started after the files of the one before were removed
            return Running(pid, self._read("addresses.json"), self._read("started.json"))
        except FileNotFoundError:  # it has not announced itself yet, or is ending
            return None

    def bound_log(self) -> None:
        """Moves what a long log has to log.1, so that both together are bounded where daemons are asked for now and then.
        By copying: a daemon goes on with the file that it has open. What it writes in between is lost."""
        with contextlib.suppress(OSError), open(self.file("log"), "r+b") as log:  # none yet, or no room: as it is, then
            fcntl.flock(log, fcntl.LOCK_EX)
            if os.fstat(log.fileno()).st_size > _LONG_LOG_BYTES:
                with open(self.file("log.1"), "wb") as before:
                    shutil.copyfileobj(log, before)
                os.truncate(log.fileno(), 0)

    def logged(self, begin: int = 0) -> str:
        """A sentence with the end of what the log has from byte ``begin`` on."""
        path = self.file("log")
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            file.seek(max(begin, os.path.getsize(path) - _LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
            return "\n".join([f"The end of {path}:", *lines])
        return f"{path} is not there"

    def _read(self, name: str) -> Any:
        with open(self.file(name)) as file:
            return json.load(file)


def _make_private(path: str) -> None:
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        places.check_private(path)
    except Error:
        raise
    except OSError as error:
        raise IoError(f"{path}: {error.strerror}; LOCKSTEP_RUNTIME_DIR names another directory for daemons") from None
