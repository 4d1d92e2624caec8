"""Two hosts on one machine: network namespaces joined by two virtual interfaces, where the machine allows that."""

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

_NAMESPACE = f"lockstep-{os.getpid()}"
_INTERFACES = (f"lsa{os.getpid() % 100_000}", f"lsb{os.getpid() % 100_000}")  # names have at most 15 characters
_ADDRESSES = ("10.249.73.1", "10.249.73.2")
_CLONE_NEWNS = 0x00020000
_CLONE_NEWNET = 0x40000000


def _run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)


def _namespaces_work() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    with contextlib.suppress(subprocess.CalledProcessError), _two_networks():
        return True
    return False


@contextlib.contextmanager
def _two_networks() -> "Iterator[None]":
    """A second network namespace, reachable from this one and from nowhere else."""
    here, there = _INTERFACES
    with contextlib.ExitStack() as cleanup:
        _run("ip", "netns", "add", _NAMESPACE)
        cleanup.callback(subprocess.run, ["ip", "netns", "del", _NAMESPACE], check=False, capture_output=True)
        _run("ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", _NAMESPACE)
        cleanup.callback(subprocess.run, ["ip", "link", "del", here], check=False, capture_output=True)
        _run("ip", "addr", "add", f"{_ADDRESSES[0]}/30", "dev", here)
        _run("ip", "link", "set", here, "up")
        _run("ip", "-n", _NAMESPACE, "addr", "add", f"{_ADDRESSES[1]}/30", "dev", there)
        for interface in ("lo", there):
            _run("ip", "-n", _NAMESPACE, "link", "set", interface, "up")
        yield


def _enter_second_host(hidden: Path) -> None:
    """This process sees the other network, and nothing in the directory where the first host has the agent's socket."""
    libc = ctypes.CDLL(None, use_errno=True)
    namespace = os.open(f"/run/netns/{_NAMESPACE}", os.O_RDONLY)
    for failed in (libc.setns(namespace, _CLONE_NEWNET), libc.unshare(_CLONE_NEWNS)):
        if failed:
            raise OSError(ctypes.get_errno(), "entering the namespaces of the second host")
    os.close(namespace)
    _run("mount", "--make-rprivate", "/")
    _run("mount", "-t", "tmpfs", "second-host", hidden)


@contextlib.contextmanager
def network_of(hosts: str, remote: "tuple[int, ...]", hidden: Path) -> "Iterator[Callable[[int], None] | None]":
    """What each rank must call first (Ranks' `prepare`) so that the `remote` ones are on another host."""
    if hosts == "one host":
        yield None
        return

    def prepare(number: int) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = _INTERFACES[number in remote]
        if number in remote:
            _enter_second_host(hidden)

    with _two_networks():
        yield prepare


# Two where the machine lets tests make namespaces; else the ranks are only set up as if they were elsewhere.
HOSTS = ["two hosts"] if _namespaces_work() else ["one host"]
