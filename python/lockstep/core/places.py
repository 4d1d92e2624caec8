"""Where this host's daemons are when nobody says so: the rule of common/os/places.h, for who looks for one."""

import os
import socket as sockets
import stat
import struct

from lockstep.core.errors import PermissionDeniedError

_HOST = {"agent": "/run/trainer-agent", "receiver": "/run/raas-receiver"}
_CONNECT_SECONDS = 5.0


def own() -> str:
    """The directory of this user's daemons, which have one each in it."""
    return os.path.abspath(os.environ.get("LOCKSTEP_RUNTIME_DIR") or f"/dev/shm/lockstep-{os.geteuid()}")


def socket(daemon: str, name: str) -> str:
    """The path of a socket of the "agent" or the "receiver": "control.sock", "export.sock" for trainers, "engine.sock" for
    engines' ranks."""
    return os.path.join(_place(daemon, name), name)


def replicas() -> str:
    """The path of a receiver's directory of replicas. PermissionDeniedError: another user could have made it."""
    place = _place("receiver", "replicas")
    if place == _HOST["receiver"]:
        return "/dev/shm/lockstep-receiver"
    if os.path.lexists(own()):
        check_private(own())
    return os.path.join(place, "replicas")


def listener(path: str) -> "int | None":
    """The process of this user or of root that listens at a unix socket now; None where none does."""
    with sockets.socket(sockets.AF_UNIX) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(path)
        except OSError:
            return None
        credentials = probe.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", credentials)
    return int(pid) if user in (0, os.geteuid()) else None


def check_private(path: str) -> None:
    """PermissionDeniedError unless ``path`` is a directory of this user, and open to this user alone."""
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode):
        problem = "is no directory, or a link to one"
    elif info.st_uid != os.geteuid():
        problem = f"belongs to user {info.st_uid}, not to {os.geteuid()}"
    elif info.st_mode & 0o077:
        problem = f"is open to other users (mode {stat.S_IMODE(info.st_mode):04o}, not 0700)"
    else:
        return
    raise PermissionDeniedError(
        f"{path} {problem}: others could replace the daemons' sockets; remove it, or name another directory by "
        "LOCKSTEP_RUNTIME_DIR"
    )


def _place(daemon: str, name: str) -> str:
    """The user's own place if a daemon listens there; else the host's, if the host has one; else the user's own, or of
    root the host's."""
    place, host = os.path.join(own(), daemon), _HOST[daemon]
    if os.environ.get("LOCKSTEP_RUNTIME_DIR") or listener(os.path.join(place, "control.sock")) is not None:
        return place
    root = os.geteuid() == 0 and not os.path.exists(os.path.join(place, name))
    return host if root or os.path.exists(host) else place
