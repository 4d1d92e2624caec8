"""Where this host's daemons are when nobody says so: the rule of common/os/places.h, for who looks for one."""

import os
import stat


def own() -> str:
    """The directory of this user's daemons, which have one each in it."""
    return os.path.abspath(os.environ.get("LOCKSTEP_RUNTIME_DIR") or f"/dev/shm/lockstep-{os.geteuid()}")


def socket(daemon: str, name: str) -> str:
    """The path of a socket of the "agent" or the "receiver": "control.sock", "export.sock" for trainers, "engine.sock" for
    engines' ranks."""
    host_place = {"agent": "/run/trainer-agent", "receiver": "/run/raas-receiver"}[daemon]
    return _find(f"{daemon}/{name}", host_place, f"{host_place}/{name}")


def replicas() -> str:
    """The path of a receiver's directory of replicas."""
    return _find("receiver/replicas", "/dev/shm/lockstep-receiver", "/dev/shm/lockstep-receiver")


def _find(name: str, host_place: str, host_path: str) -> str:
    """The user's own path if it is there and no other user could have made it; else the host's, if there is such a place
    or this user is root; else the user's own."""
    path = os.path.join(own(), name)
    there = _is_private(own()) and os.path.exists(path)
    host = not os.environ.get("LOCKSTEP_RUNTIME_DIR") and (os.geteuid() == 0 or os.path.exists(host_place))
    return path if there or not host else host_path


def _is_private(path: str) -> bool:
    try:
        info = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and info.st_mode & 0o077 == 0
