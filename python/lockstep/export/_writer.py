"""Writer: the members of every Publisher. _sharded_writer.py, _in_place_writer.py and _stream_writer.py have its kinds."""

import ctypes
import os
import time
from typing import Any, Callable, ContextManager, Sequence, Tuple, TypedDict, TypeVar

from lockstep.core import abi, arguments
from lockstep.core.errors import BadDataError, Error, StateError
from lockstep.core.handle import Handle
from lockstep.core.publication import Publication
from lockstep.core.served import Receivers, Served, wait_served
from lockstep.core.tensors import NamedTensors, TensorMeta
from lockstep.export._absence import Absence

_Self = TypeVar("_Self", bound="Writer")

_IN_PLACE_ONLY = "this is for what Publisher.in_place makes; call publish"
_NO_PLAN = "this publisher has no plan: it was made by from_stream or in_place"
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
    """A model at the agent, and how its versions are written there. Arguments as for ``Publisher``."""

    _writes = True

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

    def publish(
        self,
        label: "str | int | None" = None,
        *,
        tensors: "NamedTensors | None" = None,
        version: "int | None" = None,
    ) -> Publication:
        """Publishes the weights as a version; called on every rank. They are not written to meanwhile.

        An error leaves no version half-written, and the next publish works. Ctrl-C ends a wait for the agent, and the
        version with it, but not the wait for the answer to the commit: ``last_publication`` says whether the version is
        committed. A second Ctrl-C ends that wait, too, and takes effect at once if other ranks need this one. Outside
        such a wait, Ctrl-C takes effect after the copy.

        Args:
            label: what the version is called beside its number, such as the trainer's step: text of at most 64 bytes,
                or a number. Several versions may have the same label. All ranks that write and give one must give the
                same.
            tensors: for ``from_stream``: (name, whole tensor) pairs, or a mapping, in any order: every tensor of the
                layout once. A rank that writes needs all of them, those of other ranks' shares too. If the layout lacks
                ``lm_head.weight``, because its checkpoint ties the head to the embedding, that tensor may come after
                the embedding; it must equal the embedding, and is left out. For ``in_place``: the tensors that this
                rank owns, all of them if it is the only one; contiguous, in host memory or on a GPU. Other publishers
                read their own tensors.
            version: greater than every version of the run; None: the next number that was not tried before. Ranks that
                were made together then agree on it, by one ``all_gather_object`` of their group: give it on all ranks
                or on none. Several writers of ``from_stream`` or ``in_place`` must give it.

        Returns:
            The version, which is whole once the last rank has committed it; false where it was skipped, see
            ``skip_while_away``. Of ``from_stream``, on a rank that writes nothing and gave no number, it has number 0.

        Raises:
            BadDataError: the weights are not what was described, or bytes are missing; or ranks give different labels.
            StateError: the version does not increase, or another publish of it is under way.
            AbortedError: another rank failed, vanished or skipped it; the version is gone for all.
            UnavailableError: the agent, or another rank, cannot be reached. A lost rank is final.
        """
        return self._publish(label, tensors, version)

    @property
    def layout(self) -> "list[Tuple[TensorMeta, int]]":
        """tensors_meta: every tensor and its byte offset in the data section, in offset order; of ``from_stream`` [] on a
        rank that writes nothing."""
        raise NotImplementedError

    @property
    def data_bytes(self) -> int:
        """Size of the model's data section in bytes."""
        return sum(meta.nbytes for meta, _ in self.layout)

    @property
    def writes(self) -> bool:
        """Whether this rank writes into the agent's memory: its own part, or that of ranks on other hosts."""
        return self._writes

    @property
    def run(self) -> str:
        """The run that versions are published in, 32 hex digits; the same on every rank; of ``from_stream`` "" on one that
        writes nothing."""
        return self._run

    @property
    def committed_version(self) -> int:
        """The newest version this rank knows to be committed by all ranks; 0 for none.

        A rank that is done before others gets it with its next commit.
        """
        with self._lock:
            return int(self._library.lockstep_committed_version(self._open_handle()))

    @property
    def last_publication(self) -> "Publication | None":
        """The last version that this rank has committed; None before the first. After a Ctrl-C it says whether the version
        that was being published is committed all the same. StateError: a second Ctrl-C broke off the wait for the agent's
        answer, so that is not known, until the next version is committed."""
        if self._in_doubt:
            raise StateError(f"whether version {self._in_doubt} is committed is not known: the answer did not come")
        return self._last

    @property
    def stats(self) -> "dict[str, float]":
        """What the last publish and the last ``wait_served`` took, in seconds, bytes and versions, as docs/howto/trainers.md
        lists it. Nothing of one that failed or was skipped."""
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
        """Waits until the engines of ``receivers``, or so many ``engines``, serve a version of this run, or a newer one, as
        a fleet that has gone on does. Returns the version. Other threads may publish meanwhile, and Ctrl-C ends it.

        Args:
            label: that of the version; of several, of the newest that has it, also one that gets it meanwhile.
            version: its number, in place of a label.
            receivers: how many, with all of their engines, or the names of all that must, RECEIVER or RECEIVER/ENGINE;
                of receivers without an engine it is enough to hold it. None, "*": every one that is connected to the agent,
                and one at least; one that has not come yet is not missed.
            engines: how many, of whichever receivers; in place of ``receivers``.
            timeout: seconds; None waits for ever.

        Raises:
            DeadlineError: the time is up; the text says what each receiver serves and holds, its last error, such as
                why its engine refuses, and which are gone; ``lacking`` are the receivers that lack the version. A label is
                remembered with the newest 4096 of a run.
            StateError: the run has ended, the publisher is closed, or this rank does not write.
            UnavailableError: the time is up, and no agent answers.
        """
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

    def begin(self, version: "int | None" = None) -> memoryview:
        """Starts writing ``version``, as for ``publish``; waits, if at all, for the end of the previous diff.

        Returns the data section in shared memory, to be filled in place at the offsets of ``layout``, until commit,
        abort or close: writing to it later damages a version that is served, and receivers refuse it. After close it
        raises ValueError; its slices, and arrays made of it, keep the memory.
        """
        raise StateError(_IN_PLACE_ONLY)

    def write(self, name: str, tensor: Any) -> None:
        """Copies one whole tensor into the version being written and reports it as done. BadDataError as publish."""
        raise StateError(_IN_PLACE_ONLY)

    def ranges_done(self, ranges: Sequence[Tuple[int, int]]) -> None:
        """Reports that these (offset, bytes) ranges, filled in place, are final. Each byte may be reported once."""
        raise StateError(_IN_PLACE_ONLY)

    def commit(self, label: "str | int | None" = None) -> Publication:
        """This rank is done with the version. BadDataError names the first tensor with missing bytes. ``label`` as for
        ``publish``."""
        raise StateError(_IN_PLACE_ONLY)

    def abort(self) -> None:
        """Aborts the version being written, for all ranks."""
        raise StateError(_IN_PLACE_ONLY)

    @property
    def plan_digest(self) -> str:
        """Names the plan; equal on all ranks."""
        raise StateError(_NO_PLAN)

    def write_descriptions(self, directory: "str | os.PathLike[str]") -> None:
        """Writes the descriptions of all ranks to ``directory``, for ``lockstepctl plan --descriptions``."""
        raise StateError(_NO_PLAN)

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _filling(self) -> "ContextManager[Callable[[int, int, int], None]]":
        """Inside, a function that writes a range of the HuggingFace data section, made of the tensors as they are now:
        (offset, bytes, address to write to). BadDataError: this rank does not hold the whole model."""
        raise StateError(_NO_PLAN)

    def _publish(self, label: "str | int | None", tensors: "NamedTensors | None", version: "int | None") -> Publication:
        raise NotImplementedError

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
