"""Handle: the C ABI's lockstep_publisher, and what is known of its versions. A Publisher owns one, and writes through it."""

import contextlib
import ctypes
import errno
import json
import os
import socket
import threading
import time
import warnings
import weakref
from typing import Any, Callable, Mapping, Tuple, TypedDict

from lockstep.core import abi, arguments
from lockstep.core.answers import VersionChanges
from lockstep.core.changes import wait_changes
from lockstep.core.delayed_interrupt import delayed_interrupt
from lockstep.core.derive import Quantised, with_requests
from lockstep.core.errors import BadDataError, Error, StateError, UnavailableError, from_code
from lockstep.core.forked import FORKED, close_after_fork
from lockstep.core.guard import Guard
from lockstep.core.interruption import Interruption
from lockstep.core.publication import Publication
from lockstep.core.served import Receivers, Served, wait_served

_IN_DOUBT = "may be committed or not"  # the library's words for a commit that was sent and not answered


class CommonOptions(TypedDict, total=False):
    """What every way of making a Publisher takes, and may be left out."""

    socket: "str | os.PathLike[str] | None"
    threads: int
    run: "str | None"
    connect_timeout: "float | None"
    reconnect_timeout: "float | None"
    call_timeout: "float | None"
    skip_while_away: bool
    derive: "Mapping[str, Quantised] | None"
    guard: "Guard | None"


class Handle:
    """A model at the agent, which is opened once and closed once. Arguments as for ``Publisher``.

    The library's calls happen one at a time. The end of the process closes the handle. In a process that is forked off, the
    handle is closed.

    Attributes:
        run: "" on a rank that opens nothing. newest: of all versions that were tried.
        writes, on_agent_host: of this rank.
        counts: no other writer must be given the same numbers.
        closed: why calls are refused where the model is not open.
        skips: versions are skipped while the agent is away.
    """

    def __init__(
        self,
        *,
        model: str,
        socket: "str | os.PathLike[str] | None" = None,
        threads: int = 0,
        run: "str | None" = None,
        connect_timeout: "float | None" = 10.0,
        reconnect_timeout: "float | None" = 60.0,
        call_timeout: "float | None" = 600.0,
        skip_while_away: bool = False,
        derive: "Mapping[str, Quantised] | None" = None,
        guard: "Guard | None" = None,
    ) -> None:
        self.library = abi.load()
        self.lock = threading.RLock()
        self.socket = arguments.export_socket(socket)
        self.connect_timeout, self.call_timeout = connect_timeout, call_timeout
        self.run, self.newest = "", 0
        self.writes = self.on_agent_host = self.counts = True
        self.closed = "is closed"
        self.skips = skip_while_away
        self._derive = derive
        self._model = model
        self._options: "dict[str, Any]" = {
            "socket_path": arguments.path("socket", self.socket),
            "model": arguments.text("model", model, arguments.MODEL_NAME),
            "threads": arguments.count("threads", threads),
            "run": None if run is None else arguments.text("run", run, arguments.RUN_ID),
            "connect_timeout_ms": arguments.milliseconds("connect_timeout", connect_timeout),
            "reconnect_timeout_ms": arguments.milliseconds("reconnect_timeout", reconnect_timeout),
            "call_timeout_ms": arguments.milliseconds("call_timeout", call_timeout),
            "guard": None if guard is None else guard.text().encode(),
        }
        self._pointer: "ctypes.c_void_p | None" = None
        self._finalizer: "weakref.finalize[Any, Any] | None" = None
        self._interruption = Interruption()
        self._calling = False  # the library waits, perhaps in this thread: handlers of signals run there
        self._close_after_call = False
        self._lent: "list[Tuple[weakref.ref[Any], weakref.ref[memoryview]]]" = []  # memory, and its view
        self._away = False  # the last version was skipped
        self._published_stats: "dict[str, float]" = {}
        self._published_at = 0.0  # on the monotonic clock
        self._served_stats: "dict[str, float]" = {}
        self._last: "Publication | None" = None
        self._in_doubt = 0  # the version tried last, where it is not known whether it is committed
        close_after_fork(self)

    def open(
        self, *, attachments: "Mapping[str, str] | None" = None, config: Any = None, keeps: Any = None, **fields: Any
    ) -> None:
        """Opens the model. ``fields``: of lockstep_options, beside those that every model has. ``config``: the model's
        config.json, where it is known. ``keeps``: what the library may call until it has closed the model."""
        self._kept = keeps
        files = with_requests(attachments, self._derive, config)
        pointer = ctypes.c_void_p()
        given = abi.COptions(
            abi_version=abi.ABI_VERSION,
            interrupted=self._interruption.callback,
            attachments=json.dumps(files).encode() if files else None,
            **fields,
            **self._options,
        )
        try:
            with delayed_interrupt():  # the finalizer must get the pointer that the library opens
                code = self.library.lockstep_open(ctypes.byref(given), ctypes.byref(pointer))
                if code == 0:
                    self._pointer = pointer
                    self._finalizer = weakref.finalize(self, self.library.lockstep_close, pointer)
                self._interruption.raise_pending()
                if code != 0:
                    raise from_code(code, self._last_error(None))
        except BaseException:  # the caller has no handle to close
            self.close()
            raise
        self.run = self.library.lockstep_run(self.pointer()).decode()
        self.newest = self.committed_version

    def close(self) -> None:
        """As ``Publisher.close``. Views of memory that was lent raise ValueError from then on."""
        with self.lock, delayed_interrupt():
            if self._calling:
                self._close_after_call = True
                self._interruption.end_call(StateError("the publisher was closed meanwhile"))
            else:
                self._close()

    def pointer(self) -> ctypes.c_void_p:
        """What the library's functions take. StateError: the model is not open."""
        if self._pointer is None:
            raise StateError(f"the publisher {self.closed}")
        return self._pointer

    def call(self, function: str, *arguments: Any) -> None:
        with self.lock:
            self._raise(self._ask(function, *arguments))

    def lend(self, address: int, size: int) -> memoryview:
        """The library's memory, which stays until the view, its slices and arrays of them are gone."""
        memory: Any = (ctypes.c_ubyte * size).from_address(address)
        memory.handle = self  # so that it is not collected, and closed, while the memory is in use
        view = memoryview(memory).cast("B")
        self._lent = [*(lent for lent in self._lent if lent[0]() is not None), (weakref.ref(memory), weakref.ref(view))]
        return view

    def number(self, version: "int | None") -> int:
        """That of the version to publish, which is not tried a second time."""
        self._published_stats = {}
        # A writer that missed a version would put its part under another one's number.
        if version is None and not self.counts:
            raise BadDataError("version: several writers make a version; give its number, the same on each of them")
        number = self.newest + 1 if version is None else arguments.version_number(version)
        self.newest = max(self.newest, number)
        return number

    def publish_or_skip(self, publish: "Callable[[], Publication]", version: int, label: bytes) -> Publication:
        """What ``publish`` gives. Where it ``skips``, and no agent listens: a version that was skipped. The first version that
        the agent is there for has all weights, so receivers catch up with it."""
        skipped = Publication(version, label.decode(), skipped=True)
        if self._away and not self._agent_listens():
            return skipped
        try:
            published = publish()
        except UnavailableError as error:  # also when it is not the agent that is away
            if not self.skips or self._agent_listens():
                raise
            if not self._away:
                warnings.warn(f"versions are skipped until the agent is back: {error}", RuntimeWarning, stacklevel=3)
            self._away = True
            return skipped
        self._away = False
        return published

    def commit(self, function: str, version: int, label: bytes, *arguments: Any) -> Publication:
        """Calls ``function``, which commits; what is known of the version is noted before anything is raised."""
        with self.lock:
            in_doubt = True
            try:
                error = self._ask(function, *arguments)
                in_doubt = error is not None and _IN_DOUBT in str(error)
                if error is None:
                    published = self._note_published(version, label)
            except Error:
                in_doubt = False  # the library was not asked
                raise
            finally:
                if in_doubt:
                    self._in_doubt = version
            self._raise(error)
            return published

    @property
    def guarded(self) -> bool:
        return self._options["guard"] is not None

    @property
    def committed_version(self) -> int:
        with self.lock:
            return int(self.library.lockstep_committed_version(self.pointer())) if self.run else 0

    @property
    def last_publication(self) -> "Publication | None":
        if self._in_doubt:
            raise StateError(f"whether version {self._in_doubt} is committed is not known: the answer did not come")
        return self._last

    @property
    def stats(self) -> "dict[str, float]":
        if self.run:
            self.pointer()
        return {**self._published_stats, **self._served_stats}

    def wait_served(
        self,
        label: "str | int | None" = None,
        version: "int | None" = None,
        receivers: "Receivers | None" = None,
        engines: "int | None" = None,
        timeout: "float | None" = None,
    ) -> int:
        """As ``Publisher.wait_served``."""
        name = arguments.label(label)
        if bool(name) == (version is not None):
            raise BadDataError("wait_served: give a label or a version, one of them")
        number = 0 if version is None else arguments.version_number(version)
        self.pointer()
        if not self.on_agent_host:
            raise StateError("wait_served: this rank is not on the agent's host; call it on one that is")
        began = time.monotonic()
        self._served_stats = {}
        served = wait_served(os.fspath(self.socket), self._model, self.run, name, number, receivers, engines, timeout)
        self._served_stats = self._stats_of(served, began)
        return served.version

    def changes(self, version: int, timeout: "float | None") -> VersionChanges:
        """As ``Publication.stats``."""
        self.pointer()
        if not self.on_agent_host:
            raise StateError("stats: this rank is not on the agent's host; call it on one that is")
        return wait_changes(os.fspath(self.socket), self._model, self.run, version, timeout)

    def _close(self) -> None:
        for _, reference in self._lent:
            view = reference()
            if view is not None:
                with contextlib.suppress(BufferError):  # an array was made of it
                    view.release()
        pointer, self._pointer = self._pointer, None
        if any(memory() is not None for memory, _ in self._lent):
            self.library.lockstep_leave(pointer)  # closed with this handle, which the memory keeps
        elif self._finalizer is not None:
            self._finalizer()

    def _close_after_fork(self) -> None:
        self.lock = threading.RLock()
        self._pointer = None
        self._calling = False
        self.closed = FORKED
        if self._finalizer is not None:
            self._finalizer.detach()  # another thread may have been in the middle of a call

    def _ask(self, function: str, *arguments: Any) -> "Error | None":
        """What the library answers. ``_raise`` of it ends the call."""
        with self.lock:
            if self._calling:
                raise StateError(f"{function}: a call is under way; a signal's handler may only close")
            pointer = self.pointer()
            self._calling = True
            try:
                code = getattr(self.library, f"lockstep_{function}")(pointer, *arguments)
                return None if code == 0 else from_code(code, self._last_error(pointer))
            finally:
                self._calling = False
                if self._close_after_call:
                    self._close()

    def _raise(self, error: "Error | None") -> None:
        self._interruption.raise_pending()
        if error is not None:
            raise error

    def _last_error(self, pointer: "ctypes.c_void_p | None") -> str:
        text: bytes = self.library.lockstep_last_error(pointer)
        return text.decode(errors="replace")

    def _agent_listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)  # one that is too busy to accept is there
            return probe.connect_ex(os.fspath(self.socket)) not in (errno.ENOENT, errno.ECONNREFUSED)

    def _note_published(self, version: int, label: bytes) -> Publication:
        self._published_at = time.monotonic()
        raw = abi.CPublishStats()
        self.library.lockstep_stats(self._pointer, ctypes.byref(raw))  # all 0 if a signal's handler has closed it
        self._published_stats = {
            "lockstep/version": version,
            "lockstep/publish_seconds": raw.total_us / 1e6,
            "lockstep/begin_seconds": raw.begin_us / 1e6,
            **{f"lockstep/{field[0]}": getattr(raw, field[0]) for field in raw._fields_[:-2]},
        }
        size = raw.bytes_copied + raw.bytes_sent
        self._last = Publication(version, label.decode(), self, size=size, seconds=raw.total_us / 1e6)
        self._in_doubt = 0
        return self._last

    def _stats_of(self, served: Served, began: float) -> "dict[str, float]":
        now = time.monotonic()
        stats: "dict[str, float]" = {
            "lockstep/served_version": served.version,
            "lockstep/wait_seconds": now - began,
            "lockstep/receivers": served.receivers,
            "lockstep/receivers_serving": served.serving,
            "lockstep/lag_versions": served.newest_version - served.oldest_served,
            "lockstep/model_bytes": served.model_bytes,
        }
        if served.version == self._published_stats.get("lockstep/version"):
            stats["lockstep/publish_to_served_seconds"] = now - self._published_at
        if served.delta_bytes:
            stats["lockstep/delta_bytes"] = served.delta_bytes
            stats["lockstep/density"] = served.density
            stats["lockstep/delta_share"] = served.delta_bytes / max(1, served.model_bytes)
        return stats
