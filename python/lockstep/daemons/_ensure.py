"""The daemon of a place: found, or started by the first process that locks the place."""

import time

from lockstep.core.errors import DeadlineError, Error, IoError, StateError
from lockstep.daemons._command import Command
from lockstep.daemons._locks import keep, unlock
from lockstep.daemons._place import Place, Running
from lockstep.daemons._start import POLL_SECONDS, start


def ensure(command: Command, place: Place, owned: bool, timeout: float) -> Running:
    """The daemon that listens in ``place``; started by ``command`` where there is none. Of any number of callers, in
    any processes, one starts it and all get it. With ``owned`` this process is an owner of it when this returns.

    Raises:
        BadDataError: the program does not take these options.
        StateError: a daemon of another version, or that was started otherwise, is there.
        UnavailableError: it ended when it was started.
        DeadlineError: it, or the one before, took longer than ``timeout`` seconds.
    """
    place.bound_log()
    deadline = time.monotonic() + timeout
    wanted = command.description()
    owner = None
    try:
        while True:
            if owned and owner is None:
                owner = place.own()
            running = _start_or_find(command, place, wanted, deadline) if owner is not None or not owned else None
            if running is not None:
                _check_alike(command, place, running, wanted)
                if owner is not None:
                    keep(place.file("owners"), owner)
                return running
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"{place.path}: a daemon is there, which has neither listened nor ended in {timeout:g} s. "
                    f"{place.logged()}"
                )
            time.sleep(POLL_SECONDS)
    except BaseException as error:
        if owner is not None:
            unlock(owner)
        if isinstance(error, OSError) and not isinstance(error, Error):
            raise IoError(f"{place.path}: {error}") from error
        raise


def _start_or_find(command: Command, place: Place, wanted: "dict[str, str]", deadline: float) -> "Running | None":
    """None: another caller is starting a daemon, or one is ending."""
    lock = place.lock()
    if lock is not None:
        try:
            place.prepare(wanted)
            start(command, place, lock, deadline)
        finally:
            unlock(lock)  # the daemon has it
    return place.running()


def _check_alike(command: Command, place: Place, running: Running, wanted: "dict[str, str]") -> None:
    there = running.started
    keys = ["version"] if there.get("version") != wanted["version"] else sorted(there.keys() | wanted.keys())
    differences = [
        f"its {key} is {there.get(key, 'unknown')}, not {wanted.get(key, 'unknown')}"
        for key in keys
        if there.get(key) != wanted.get(key)
    ]
    if differences:
        raise StateError(
            f"{place.path}: another daemon than the {command.name} that is asked for runs there: {'; '.join(differences)}. "
            f"Ask for the same, choose another name, or end it first (kill {running.pid})"
        )
