"""Starting a daemon, apart from the process that asks for it."""

import os
import signal
import subprocess
import sys
import time
from typing import BinaryIO, Sequence

from lockstep.core.errors import DeadlineError, IoError, UnavailableError
from lockstep.daemons._command import Command
from lockstep.daemons._place import Place
from lockstep.daemons._process import Process

POLL_SECONDS = 0.02

# The daemon has its own session: Ctrl-C at the trainer's terminal does not reach it. It is no child of this process:
# this process need not wait for it, and Ray, which kills the children of a worker that ends, does not find it. A
# separate interpreter forks, because a process that has threads must not.
_DETACH = """
import os, sys
pid = os.fork()
if pid:
    print(pid)
else:
    os.setsid()
    os.chdir("/")
    os.dup2(2, 1)
    os.execv(sys.argv[1], sys.argv[1:])
"""


def start(command: Command, place: Place, lock: int, deadline: float) -> None:
    """Starts a daemon, which inherits ``lock``, and waits until it listens. One that does not in time is killed.

    Raises, with what the daemon has logged:
        UnavailableError: it ended.
        DeadlineError: the time (``time.monotonic``) came.
    """
    with open(place.file("log"), "ab") as log:
        begin = log.tell()
        pid = _detached(command.words(), lock, log)
    with Process(pid) as process:
        try:
            while not os.path.exists(place.file("addresses.json")):
                if process.ended(POLL_SECONDS):
                    raise UnavailableError(f"{command.name} ended when it was started. {place.logged(begin)}")
                if time.monotonic() > deadline:
                    raise DeadlineError(f"{command.name} did not listen in time, and was killed. {place.logged(begin)}")
        except BaseException:  # Ctrl-C, too
            process.send(signal.SIGKILL)
            raise


def _detached(words: "Sequence[str]", lock: int, log: BinaryIO) -> int:
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _DETACH, *words], stdin=lock, stdout=subprocess.PIPE, stderr=log
    )
    if result.returncode != 0:
        raise IoError(
            f"{sys.executable}, which should start {words[0]}, ended with {result.returncode}; see {log.name}"
        )
    return int(result.stdout)
