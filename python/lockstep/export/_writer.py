"""Writer: what this process has of a model at the agent, by which its versions are written; Publisher has one."""

import ctypes
import os
import time
from typing import Any, Tuple, TypedDict

from lockstep.core import abi, arguments
from lockstep.core.errors import BadDataError, Error, StateError
from lockstep.core.handle import Handle
from lockstep.core.publication import Publication
from lockstep.core.served import Receivers, Served, wait_served
from lockstep.core.tensors import NamedTensors, TensorMeta
from lockstep.export._absence import Absence

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


class Writer(Handle):
    """Arguments, properties and errors as ``Publisher`` has them."""

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
    ) -> None:
        super().__init__()
        self._socket = arguments.export_socket(socket)
        self._model = model
        self._connect_timeout, self._call_timeout = connect_timeout, call_timeout
        self._options: "dict[str, Any]" = {
            "socket_path": arguments.path("socket", self._socket),
            "model": arguments.text("model", model, arguments.MODEL_NAME),
            "threads": arguments.count("threads", threads),
            "run": None if run is None else arguments.text("run", run, arguments.RUN_ID),
            "connect_timeout_ms": arguments.milliseconds("connect_timeout", connect_timeout),
            "reconnect_timeout_ms": arguments.milliseconds("reconnect_timeout", reconnect_timeout),
            "call_timeout_ms": arguments.milliseconds("call_timeout", call_timeout),
        }
        self._absence = Absence(self._socket, skip_while_away)
        self._run = ""
        self._newest = 0  # of all versions that were tried
        self._published_stats: "dict[str, float]" = {}
        self._published_at = 0.0  # on the monotonic clock
        self._served_stats: "dict[str, float]" = {}
        self._last: "Publication | None" = None
        self._in_doubt = 0  # the version tried last, where it is not known whether it is committed

    def publish(self, label: "str | int | None", tensors: "NamedTensors | None", version: "int | None") -> Publication:
        raise NotImplementedError

    @property
    def layout(self) -> "list[Tuple[TensorMeta, int]]":
        raise NotImplementedError

    @property
    def writes(self) -> bool:
        raise NotImplementedError

    @property
    def run(self) -> str:
        return self._run

    @property
    def committed_version(self) -> int:
        with self._lock:
            return int(self._library.lockstep_committed_version(self._open_handle()))

    @property
    def last_publication(self) -> "Publication | None":
        if self._in_doubt:
            raise StateError(f"whether version {self._in_doubt} is committed is not known: the answer did not come")
        return self._last

    @property
    def stats(self) -> "dict[str, float]":
        self._open_handle()
        return {**self._published_stats, **self._served_stats}

    def wait_served(
        self,
        label: "str | int | None" = None,
        *,
        version: "int | None" = None,
        receivers: "Receivers | None" = None,
        engines: "int | None" = None,
        timeout: "float | None" = None,
    ) -> int:
        name = arguments.label(label)
        if bool(name) == (version is not None):
            raise BadDataError("wait_served: give a label or a version, one of them")
        number = 0 if version is None else arguments.version_number(version)
        self._open_handle()
        if not self._is_on_agent_host():
            raise StateError("wait_served: this rank is not on the agent's host; call it on one that is")
        began = time.monotonic()
        self._served_stats = {}
        served = wait_served(os.fspath(self._socket), self._model, self._run, name, number, receivers, engines, timeout)
        self._served_stats = self._stats_of(served, began)
        return served.version

    def _is_on_agent_host(self) -> bool:
        return True

    def _number(self, version: "int | None") -> int:
        """That of the version to publish, which is not tried a second time."""
        number = self._next_number() if version is None else arguments.version_number(version)
        self._newest = max(self._newest, number)
        return number

    def _next_number(self) -> int:
        return self._newest + 1

    def _opened(self) -> None:
        """The model is open at the agent."""
        self._run = self._library.lockstep_run(self._open_handle()).decode()
        self._newest = self.committed_version

    def _commit(self, function: str, version: int, label: bytes, *arguments: Any) -> Publication:
        """Calls ``function``, which commits; what is known of the version is noted before anything is raised."""
        with self._lock:
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

    def _note_published(self, version: int, label: bytes) -> Publication:
        self._published_at = time.monotonic()
        raw = abi.CPublishStats()
        self._library.lockstep_stats(self._handle, ctypes.byref(raw))  # all 0 if a signal's handler has closed it
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
            stats["lockstep/delta_share"] = served.delta_bytes / max(1, served.model_bytes)
        return stats
