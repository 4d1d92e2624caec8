"""Handle: a publisher of the C ABI, something opened once and closed once; Publisher and Exporter are each one."""

import ctypes
import threading
import time
import weakref
from typing import Any, TypeVar

from lockstep.core import abi, arguments
from lockstep.core.delayed_interrupt import delayed_interrupt
from lockstep.core.errors import BadDataError, StateError, from_code
from lockstep.core.forked import FORKED, close_after_fork
from lockstep.core.interruption import Interruption
from lockstep.core.publication import Publication
from lockstep.core.served import Receivers, Served, wait_served

_Self = TypeVar("_Self", bound="Handle")


class Handle:
    """Calls of one handle happen one at a time; leaving its ``with`` block, or the end of the process, closes it.
    In a process that is forked off it is closed.
    """

    def __init__(self) -> None:
        self._library = abi.load()
        self._lock = threading.RLock()
        self._handle: "ctypes.c_void_p | None" = None
        self._finalizer: "weakref.finalize[Any, Any] | None" = None
        self._closed = "is closed"
        self._interruption = Interruption()
        self._calling = False  # the library waits, perhaps in this thread: handlers of signals run there
        self._close_after_call = False
        self._agent: "tuple[str, str] | None" = None  # its socket and the model's name there; None: on another host
        self._run = ""
        self._published_stats: "dict[str, float]" = {}
        self._published_at = 0.0  # on the monotonic clock
        self._served_stats: "dict[str, float]" = {}
        self._last: "Publication | None" = None
        close_after_fork(self)

    @property
    def committed_version(self) -> int:
        """The newest version this rank knows to be committed by all ranks; 0 for none.

        A rank that is done before others gets it with its next commit.
        """
        with self._lock:
            return int(self._library.lockstep_committed_version(self._open_handle()))

    def wait_served(
        self,
        label: "str | int | None" = None,
        *,
        version: "int | None" = None,
        receivers: "Receivers | None" = None,
        engines: "int | None" = None,
        timeout: "float | None" = None,
    ) -> int:
        """Waits until the engines of ``receivers``, or so many ``engines``, serve a version of this run, or a newer one, as a fleet that has gone
        on does. Returns the version. Other threads may publish meanwhile, and Ctrl-C ends it.

        Args:
            label: that of the version; of several, of the newest that has it, also one that gets it meanwhile.
            version: its number, in place of a label.
            receivers: how many, with all of their engines, or the names of all that must, RECEIVER or RECEIVER/ENGINE;
                of receivers without an engine it is enough to hold it.
            engines: how many, of whichever receivers; in place of ``receivers``.
            timeout: seconds; None waits for ever.

        Raises:
            DeadlineError: the time is up; the text says what each receiver serves and holds, its last error, such as
                why its engine refuses, and who is gone. A label is remembered with the newest 4096 of a run.
            StateError: the run has ended, the handle is closed, or this process is not on the agent's host.
            UnavailableError: the time is up, and no agent answers.
        """
        name = arguments.label(label)
        if bool(name) == (version is not None):
            raise BadDataError("wait_served: give a label or a version, one of them")
        number = 0 if version is None else arguments.version_number(version)
        self._open_handle()
        if self._agent is None:
            raise StateError("wait_served: this rank is not on the agent's host; call it on one that is")
        began = time.monotonic()
        self._served_stats = {}
        served = wait_served(*self._agent, self.run, name, number, receivers, engines, timeout)
        self._served_stats = self._stats_of(served, began)
        return served.version

    @property
    def last_publication(self) -> "Publication | None":
        """The last version that this rank has committed; None before the first. After a Ctrl-C it says whether the version
        that was being published is committed all the same."""
        return self._last

    @property
    def stats(self) -> "dict[str, float]":
        """What the last publish and the last ``wait_served`` took, in seconds, bytes and versions, as python/README.md
        lists it. Nothing of one that failed or was skipped."""
        self._open_handle()
        return {**self._published_stats, **self._served_stats}

    @property
    def run(self) -> str:
        """The run that versions are published in, 32 hex digits; the same on every rank."""
        return self._run

    def close(self) -> None:
        """Leaves the agent; a version being written is aborted. Closing twice is fine. Where a signal's handler closes
        in the middle of a call, that call ends with StateError."""
        with self._lock, delayed_interrupt():
            if self._calling:
                self._close_after_call = True
                self._interruption.end_call(StateError(f"the {type(self).__name__.lower()} was closed meanwhile"))
            else:
                self._close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _note_published(self, version: int, label: bytes) -> Publication:
        self._published_at = time.monotonic()
        raw = abi.CPublishStats()
        self._call("stats", ctypes.byref(raw))
        self._published_stats = {
            "lockstep/version": version,
            "lockstep/publish_seconds": raw.total_us / 1e6,
            "lockstep/begin_seconds": raw.begin_us / 1e6,
            **{f"lockstep/{field[0]}": getattr(raw, field[0]) for field in raw._fields_[:-2]},
        }
        size = raw.bytes_copied + raw.bytes_sent
        self._last = Publication(version, label.decode(), self, size=size, seconds=raw.total_us / 1e6)
        return self._last

    def _stats_of(self, served: Served, began: float) -> "dict[str, float]":
        now = time.monotonic()
        stats: "dict[str, float]" = {"lockstep/served_version": served.version, "lockstep/wait_seconds": now - began}
        if served.version == self._published_stats.get("lockstep/version"):
            stats["lockstep/publish_to_served_seconds"] = now - self._published_at
        if served.receivers:
            stats["lockstep/receivers"] = served.receivers
            stats["lockstep/receivers_serving"] = served.serving
            stats["lockstep/lag_versions"] = served.newest_version - served.oldest_served
            stats["lockstep/model_bytes"] = served.model_bytes
        if served.delta_bytes:
            stats["lockstep/delta_bytes"] = served.delta_bytes
            stats["lockstep/density"] = served.density
        return stats

    def _close(self) -> None:
        self._handle = None
        if self._finalizer is not None:
            self._finalizer()

    def _close_after_fork(self) -> None:
        self._lock = threading.RLock()
        self._handle = None
        self._closed = FORKED
        if self._finalizer is not None:
            self._finalizer.detach()  # another thread may have been in the middle of a call

    def _open(self, **options: Any) -> None:
        """``options``: fields of lockstep_options."""
        handle = ctypes.c_void_p()
        given = abi.COptions(
            abi_version=abi.ABI_VERSION,
            interrupted=self._interruption.callback,
            **options,
        )
        try:
            with delayed_interrupt():  # what the library has opened is closed by somebody
                code = self._library.lockstep_open(ctypes.byref(given), ctypes.byref(handle))
                if code == 0:
                    self._handle = handle
                    self._finalizer = weakref.finalize(self, self._library.lockstep_close, handle)
                self._interruption.raise_pending()
                if code != 0:
                    raise from_code(code, self._last_error(None))
        except BaseException:  # nobody else can: the caller has no handle
            self.close()
            raise

    def _call(self, function: str, *arguments: Any) -> None:
        with self._lock:
            if self._calling:
                raise StateError(f"{function}: a call is under way; a signal's handler may only close")
            handle = self._open_handle()
            self._calling = True
            try:
                code = getattr(self._library, f"lockstep_{function}")(handle, *arguments)
                error = None if code == 0 else from_code(code, self._last_error(handle))
            finally:
                self._calling = False
                if self._close_after_call:
                    self._close()
            self._interruption.raise_pending()
            if error is not None:
                raise error

    def _open_handle(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise StateError(f"the {type(self).__name__.lower()} {self._closed}")
        return self._handle

    def _last_error(self, handle: "ctypes.c_void_p | None") -> str:
        text: bytes = self._library.lockstep_last_error(handle)
        return text.decode(errors="replace")
