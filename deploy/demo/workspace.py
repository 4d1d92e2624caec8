"""A directory, the processes in it, and the wait for what they do. Leaving it ends and removes all of it."""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

from failure import EX_UNAVAILABLE, DemoFailed

BASE = Path("/dev/shm")
PREFIX = "lockstep-demo."
KEPT_PREFIX = "lockstep-demo-kept."
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def _die_with_parent():
    """Between fork and exec: should the demo itself be SIGKILLed, nothing it started stays behind. SIGTERM: a server of many
    processes ends the others."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Process:
    """A child with a log file, and what it starts itself. With `on_line`, the lines of its stdout come from a thread of
    their own. `environment` has variables beside ours."""

    def __init__(self, name, argv, log_path, on_line=None, has_stdin=False, environment=None):
        self.name = name
        self.log_path = log_path
        with open(log_path, "ab") as log:
            self._child = subprocess.Popen(
                [str(word) for word in argv],
                stdin=subprocess.PIPE if has_stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE if on_line else log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # the terminal's Ctrl-C is for the demo, which ends the others in order
                preexec_fn=_die_with_parent,
            )
        if on_line:
            threading.Thread(target=self._read_lines, args=(on_line,), daemon=True).start()

    def _read_lines(self, on_line):
        for line in self._child.stdout:
            on_line(line.decode())

    def send_line(self):
        self._child.stdin.write(b"\n")
        self._child.stdin.flush()

    @property
    def exit_status(self):
        return self._child.poll()

    def kill(self):
        self._end(signal.SIGKILL, None)

    def stop(self, timeout_s=10):
        self._end(signal.SIGTERM, timeout_s)

    def _end(self, number, timeout_s):
        """Ends it by a signal, and by SIGKILL what it started itself and is left after that time. Python's resource tracker
        ends last, by itself: it removes what the others leave in /dev/shm."""
        self._child.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout_s)
        deadline = time.monotonic() + 5
        while (left := _group(self._child.pid)) and time.monotonic() < deadline:
            for process, command in left.items():
                if b"multiprocessing.resource_tracker" not in command:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
            time.sleep(0.02)
        self._child.wait()

    def log_tail(self, lines=15):
        text = self.log_path.read_text(errors="replace").splitlines()
        return (
            "\n".join(f"    {self.name} | {line}" for line in text[-lines:]) or f"    {self.name} | (its log is empty)"
        )


class Workspace:
    def __init__(self, keep):
        self.path = BASE / f"{KEPT_PREFIX if keep else PREFIX}{os.getpid()}"
        self._keep = keep
        self._processes = []
        self._changed = threading.Condition()

    def __enter__(self):
        _remove_leftovers()
        self.path.mkdir(mode=0o700)
        return self

    def __exit__(self, *_):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # nothing interrupts the cleaning up
        for process in reversed(self._processes):
            process.stop()
        if self._keep:
            print(f"kept: {self.path}")
        else:
            shutil.rmtree(self.path, ignore_errors=True)

    def start(self, name, argv, **options):
        try:
            process = Process(name, argv, self.path / f"{name}.log", **options)
        except OSError as error:
            raise DemoFailed(EX_UNAVAILABLE, f"{name} could not be started: {error}") from error
        self._processes.append(process)
        return process

    def expect_end(self, process):
        """From here on it is no surprise that `process` is gone."""
        self._processes.remove(process)

    def update(self, change):
        """Runs `change` and wakes wait_until(). For the threads that read the processes' lines."""
        with self._changed:
            change()
            self._changed.notify_all()

    def wait_until(self, done, timeout_s, concerned, missing):
        """Until done(). A timeout says what is missing(), with the logs of the processes `concerned`."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not done():
                self._check_alive()
                if time.monotonic() > deadline:
                    tails = "\n".join(process.log_tail() for process in concerned)
                    raise DemoFailed(EX_UNAVAILABLE, f"after {timeout_s:.0f} s {missing()}\n{tails}")
                self._changed.wait(0.05)

    def _check_alive(self):
        for process in self._processes:
            if process.exit_status is not None:
                raise DemoFailed(
                    EX_UNAVAILABLE,
                    f"{process.name} ended with status {process.exit_status}; the end of its log:\n"
                    f"{process.log_tail()}",
                )


def _group(leader):
    """The processes of a group that have not ended, and their command lines."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            if command and os.getpgid(int(entry.name)) == leader:
                found[int(entry.name)] = command
    return found


def _remove_leftovers():
    """Directories of demos that were SIGKILLed and could not clean up."""
    for path in BASE.glob(f"{PREFIX}*"):
        owner = path.name[len(PREFIX) :]
        if owner.isdigit() and not Path("/proc", owner).exists() and path.stat().st_uid == os.getuid():
            shutil.rmtree(path, ignore_errors=True)
