"""The demo's directory, where lockstep.ensure_agent and ensure_receiver start daemons, and its receivers, whose syncs a
thread sees. Used by scenario.py and vllm_scenario.py."""

import contextlib
import os
import select
import shutil
import signal
import threading
from pathlib import Path

from failure import EX_UNAVAILABLE, DemoFailed

import lockstep

MODEL = "actor"
BASE = Path("/dev/shm")
PREFIX = "lockstep-demo."
KEPT_PREFIX = "lockstep-demo-kept."
_changed = threading.Condition()  # a receiver has made a sync, or has ended


class Workspace(contextlib.ExitStack):
    """The directory. Leaving it calls what was pushed, such as a daemon's stop(), and removes the directory."""

    def __init__(self, keep):
        super().__init__()
        _remove_leftovers()
        self.path = BASE / f"{KEPT_PREFIX if keep else PREFIX}{os.getpid()}"
        self.path.mkdir(mode=0o700)
        if keep:
            self.callback(print, f"kept: {self.path}")
        else:
            self.callback(shutil.rmtree, self.path, ignore_errors=True)
        os.environ["LOCKSTEP_RUNTIME_DIR"] = str(self.path)

    def __exit__(self, *error):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # nothing interrupts the cleaning up
        return super().__exit__(*error)


class Receiver:
    """A raas_receiver, which may be killed and start again on what it left, and a thread that sees its syncs. `options` are
    more of ensure_receiver."""

    def __init__(self, workspace, letter, **options):
        self._workspace = workspace
        self._options = {"name": f"receiver-{letter}", "end_with_owner": True, **options}
        self._ended = None  # why
        self._watch = None
        self.letter = letter
        self.daemon = None  # lockstep.daemons.Receiver, while it is to live
        self.syncs = []  # lockstep.control.Sync
        self.failures = []

    def start(self, agent, timeout_s):
        self.daemon = lockstep.ensure_receiver(agent.control, MODEL, timeout=timeout_s, **self._options)
        self._workspace.callback(self.daemon.stop)
        self._ended = None
        self._watch = threading.Thread(target=self._see_syncs, args=(self.daemon.control,), daemon=True)
        self._watch.start()

    def kill(self):
        kill(self.daemon)
        self._watch.join()
        self.daemon = None

    @property
    def version(self):
        return self.syncs[-1].to.version if self.syncs else 0

    def is_late(self, version):
        """Whether it has yet to commit the version. DemoFailed: it has ended, and will not."""
        if self._ended:
            raise DemoFailed(
                EX_UNAVAILABLE, f"receiver {self.letter} ended: {self._ended}\n{log_tail(self.daemon.log)}"
            )
        return self.version < version

    def _see_syncs(self, control):
        try:
            for sync in lockstep.control.Receiver(control).syncs():
                with _changed:
                    (self.failures if sync.error else self.syncs).append(sync)
                    _changed.notify_all()
        except lockstep.Error as error:
            with _changed:
                self._ended = error
                _changed.notify_all()


def wait_for_version(version, receivers, timeout_s):
    """Until all of the receivers have committed the version, or a newer one."""
    late = lambda: [receiver for receiver in receivers if receiver.is_late(version)]  # noqa: E731
    with _changed:
        if _changed.wait_for(lambda: not late(), timeout_s):
            return
        standing = "\n".join(
            f"receiver {one.letter} holds {one.version or 'nothing'}"
            + "".join(f", its last sync failed: {failure.error}" for failure in one.failures[-1:])
            + f"\n{log_tail(one.daemon.log)}"
            for one in late()
        )
    raise DemoFailed(EX_UNAVAILABLE, f"version {version} is not everywhere after {timeout_s:.0f} s\n{standing}")


def kill(daemon):
    """SIGKILL, and the wait for the daemon's end."""
    process = os.pidfd_open(daemon.pid)
    signal.pidfd_send_signal(process, signal.SIGKILL)
    select.select([process], [], [])
    os.close(process)


def log_tail(path, lines=15):
    text = Path(path).read_text(errors="replace").splitlines()[-lines:]
    return "\n".join(f"    {line}" for line in [f"the end of {path}:", *text])


def _remove_leftovers():
    """Directories of demos that were SIGKILLed and could not clean up. Their daemons have ended with them."""
    for path in BASE.glob(f"{PREFIX}*"):
        owner = path.name[len(PREFIX) :]
        if owner.isdigit() and not Path("/proc", owner).exists() and path.stat().st_uid == os.getuid():
            shutil.rmtree(path, ignore_errors=True)
