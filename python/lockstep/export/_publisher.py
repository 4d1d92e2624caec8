"""Publisher: one rank's handle on one model, over the C ABI."""

import contextlib
import ctypes
import json
import os
import struct
import weakref
from typing import Any, Iterable, Mapping, NamedTuple, Sequence, Tuple, Union

from lockstep.core import abi, arguments
from lockstep.core.delayed_interrupt import delayed_interrupt
from lockstep.core.errors import BadDataError, Error
from lockstep.core.handle import Handle
from lockstep.core.publication import Publication
from lockstep.core.tensors import (
    NamedTensors,
    TensorBytes,
    TensorMeta,
    assign_offsets,
    bytes_of,
    describe,
    entries_of,
    named,
)
from lockstep.export._absence import Absence
from lockstep.export._c_tensors import refuse_gpu_tensors, wait_for_gpu
from lockstep.export._saved_tensors import refuse_names_in_memory
from lockstep.export._ties import warn_of_ties

_C_TENSOR = struct.Struct("@PPPIQ")  # abi.CTensor: name, dtype, shape, rank, offset
assert _C_TENSOR.size == ctypes.sizeof(abi.CTensor)


class _Source(NamedTuple):
    """What is written to the tensor at ``position``; ``rounds``: float32 of it becomes bfloat16."""

    position: int
    bytes: TensorBytes
    rounds: bool = False


class Publisher(Handle):
    """Publishes versions of one model to the trainer_agent on this host.

    One Publisher per (process, model). A publisher serialises its own calls, not the steps of a version: let one thread
    publish. Closing it, leaving its ``with`` block, or ending the process aborts a version that is being written.

    Args:
        socket: the agent's unix socket; None: $LOCKSTEP_AGENT_SOCKET, or /run/trainer-agent/export.sock.
        model: the model's name, ``[A-Za-z0-9._-]{1,128}``.
        tensors: the whole model in export order, the same on every rank: a mapping or (name, tensor) pairs of tensors
            on any device, or ``TensorMeta``. Only names, dtypes and shapes are used. One that has two names, as a tied
            ``lm_head.weight``, is published twice, with a warning: ``without_ties`` leaves the second one out. Of a
            transformers model give ``saved_tensors``, here and to ``publish``.
        rank: this writer's number, below ``ranks``.
        ranks: how many writers on this host must commit a version.
        threads: that copy, the caller's among them; 0: as many as there are cores for each rank of this host, at most 4.
        run: None for a new run; 32 hex digits to continue a run whose versions the agent still holds: of the same
            tensors, attachments and number of ranks.
        attachments: small text files that belong to the model, file name to text, the same on every rank; receivers
            write them next to the tensors. With "adapter_config.json" among them that is a PEFT adapter's directory.
        connect_timeout: seconds to wait for the agent; None: no limit, as of the next two.
        reconnect_timeout: seconds that a call waits for an agent that went away.
        call_timeout: seconds that a call waits for the agent's answer.
        skip_while_away: when that wait for the agent was in vain, ``publish`` answers what is false instead of raising
            UnavailableError, and from then on without a wait, until an agent listens on ``socket``. The next version
            has all weights, so receivers catch up with it.

    Raises:
        BadDataError: the description breaks a rule; the text names the tensor or attachment.
        UnavailableError: no agent on ``socket``.
        Error: any other class of it, with the library's sentence.
    """

    def __init__(
        self,
        socket: "str | os.PathLike[str] | None",
        model: str,
        tensors: Union[NamedTensors, Iterable[TensorMeta]],
        *,
        rank: int = 0,
        ranks: int = 1,
        threads: int = 0,
        run: "str | None" = None,
        attachments: "Mapping[str, str] | None" = None,
        connect_timeout: "float | None" = 10.0,
        reconnect_timeout: "float | None" = 60.0,
        call_timeout: "float | None" = 600.0,
        skip_while_away: bool = False,
    ) -> None:
        super().__init__()
        socket = arguments.agent_socket(socket)
        opening = arguments.opening(
            socket,
            model,
            threads=threads,
            run=run,
            connect_timeout=connect_timeout,
            reconnect_timeout=reconnect_timeout,
            call_timeout=call_timeout,
        )
        entries = list(entries_of(tensors))
        self._tensors, self._offsets = assign_offsets(describe(entries))
        refuse_names_in_memory(self._tensors)
        warn_of_ties(entries)
        self._positions = {meta.name: position for position, meta in enumerate(self._tensors)}
        c_tensors, described = self._c_tensors()
        self._given: "list[Tuple[weakref.ref[Any], weakref.ref[memoryview]]]" = []  # by begin(): memory, and its view
        self._absence = Absence(socket, skip_while_away)
        self._version = 0  # that was begun last
        self._open(
            tensors=c_tensors,
            tensor_count=len(self._tensors),
            rank=arguments.count("rank", rank),
            ranks=arguments.count("ranks", ranks, least=1),
            attachments=None if attachments is None else json.dumps(dict(attachments)).encode(),
            **opening,
        )
        del described  # the library has read it
        self._run = self._library.lockstep_run(self._open_handle()).decode()
        self._agent = (os.fspath(socket), model)

    @property
    def data_bytes(self) -> int:
        """Size of the model's data section in bytes."""
        return sum(meta.nbytes for meta in self._tensors)

    @property
    def layout(self) -> "list[Tuple[TensorMeta, int]]":
        """Every tensor and its byte offset in the data section, in offset order."""
        return list(zip(self._tensors, self._offsets))

    def publish(self, version: int, tensors: NamedTensors, label: "str | int | None" = None) -> Publication:
        """Writes this rank's tensors as ``version`` and commits it. False where it was skipped, see ``skip_while_away``.

        Every tensor is checked before anything is written. An error leaves no version half-written and the next publish
        works. Ctrl-C waits for the end of the copy. It ends a wait for the agent, and that gives the version up, unless it
        was committed: ``last_publication`` says so. One that was being committed may be served yet.

        Args:
            version: greater than every version of the run.
            tensors: those this rank owns, by the names the publisher was opened with; all of them when it is the only
                rank. Contiguous, in host memory or on a GPU, and not written to during the call.
            label: what the version is called beside its number, such as the trainer's step: text of at most 64 bytes,
                or a number. Any number of versions may have the same. Ranks that give one give the same.

        Raises:
            BadDataError: a tensor is unknown, of another dtype or shape, not readable in place, or missing; or ranks give
                different labels.
            StateError: the version does not increase.
            AbortedError: another rank vanished or aborted, or skipped it; this version is gone for all.
            UnavailableError: no agent came back within ``reconnect_timeout``.
        """
        sources = [self._source(name, tensor) for name, tensor in named(tensors)]
        name = arguments.label(label)
        self._open_handle()
        number = arguments.version_number(version)
        self._published_stats = {}
        return self._absence.publish(lambda: self._publish(number, sources, name), number, name)

    def begin(self, version: int) -> memoryview:
        """Starts writing ``version``; waits, if at all, for the end of the previous diff.

        Returns the data section in shared memory, to be filled in place at the offsets of ``layout``, until commit,
        abort or close: writing to it later damages a version that is served, and receivers refuse it. After close it
        raises ValueError; its slices, and arrays made of it, keep the memory.
        """
        number = arguments.version_number(version)
        data = ctypes.c_void_p()
        self._call("begin", number, ctypes.byref(data))
        self._version, self._published_stats = number, {}
        memory: Any = (ctypes.c_ubyte * self.data_bytes).from_address(data.value or 0)
        memory.publisher = self  # which is not collected, and closed, as long as somebody has the memory
        view = memoryview(memory).cast("B")
        self._given = [
            *(given for given in self._given if given[0]() is not None),
            (weakref.ref(memory), weakref.ref(view)),
        ]
        return view

    def write(self, name: str, tensor: Any) -> None:
        """Copies one whole tensor into the version being written and reports it as done. BadDataError as publish."""
        self._write([self._source(name, tensor)])

    def _write_rounded(self, name: str, tensor: Any) -> None:
        """As ``write``, of a float32 tensor that is published as bfloat16."""
        self._write([_Source(self._positions[name], bytes_of(name, tensor), True)])

    def ranges_done(self, ranges: Sequence[Tuple[int, int]]) -> None:
        """Reports that these (offset, bytes) ranges, filled in place, are final. Each byte may be reported once."""
        array = (abi.CRange * len(ranges))(*(abi.CRange(*span) for span in ranges))
        self._call("ranges_done", array, len(ranges))

    def commit(self, label: "str | int | None" = None) -> Publication:
        """This rank is done with the version. BadDataError names the first tensor with missing bytes. ``label`` as for
        ``publish``."""
        name = arguments.label(label)
        self._call("commit", name)
        return self._note_published(self._version, name)

    def abort(self) -> None:
        """Aborts the version being written, for all ranks."""
        self._call("abort", self._version, None)

    def _close(self) -> None:
        """Views that begin() gave raise ValueError from then on."""
        for _, reference in self._given:
            view = reference()
            if view is not None:
                with contextlib.suppress(BufferError):  # an array was made of it
                    view.release()
        if any(memory() is not None for memory, _ in self._given):
            self._library.lockstep_leave(self._handle)
            self._handle = None  # closed with this publisher, which the memory keeps
        else:
            super()._close()

    def _publish(self, version: int, sources: "Sequence[_Source]", label: bytes) -> Publication:
        with self._lock, delayed_interrupt():
            self.begin(version)
            try:
                self._write(sources)
                return self.commit(label.decode())
            except BaseException:
                with contextlib.suppress(Error):  # what went wrong first is what the caller must see
                    self.abort()
                raise

    def _c_tensors(self) -> "tuple[ctypes.Array[abi.CTensor], Any]":
        """The descriptions for the library, and what must live as long as they do. Packed, since assigning the fields
        of 100,000 structures takes a second."""
        dtypes = {dtype: ctypes.create_string_buffer(dtype.encode()) for dtype in {m.dtype for m in self._tensors}}
        dtype_at = {dtype: ctypes.addressof(buffer) for dtype, buffer in dtypes.items()}
        encoded = [meta.name.encode() for meta in self._tensors]
        names = ctypes.create_string_buffer(b"\0".join(encoded))
        extents = [extent for meta in self._tensors for extent in meta.shape]
        shapes = (ctypes.c_uint64 * max(1, len(extents)))(*extents)
        name_at, shape_at = ctypes.addressof(names), ctypes.addressof(shapes)
        packed = bytearray(_C_TENSOR.size * len(self._tensors))
        for position, (meta, offset) in enumerate(zip(self._tensors, self._offsets)):
            rank = len(meta.shape)
            _C_TENSOR.pack_into(
                packed, position * _C_TENSOR.size, name_at, dtype_at[meta.dtype], shape_at, rank, offset
            )
            name_at += len(encoded[position]) + 1
            shape_at += 8 * rank
        return (abi.CTensor * len(self._tensors)).from_buffer(packed), (dtypes, names, shapes)

    def _source(self, name: str, tensor: Any) -> "_Source":
        position = self._positions.get(name)
        if position is None:
            raise BadDataError(f'tensor "{name}": the model was opened without it; reopen it with every tensor')
        source = bytes_of(name, tensor)
        opened = self._tensors[position]
        if source.meta != opened:
            raise BadDataError(
                f'tensor "{name}": it is {source.meta.dtype} {list(source.meta.shape)}, '
                f"the model was opened with {opened.dtype} {list(opened.shape)}"
            )
        return _Source(position, source)

    def _write(self, sources: "Sequence[_Source]") -> None:
        refuse_gpu_tensors((source.bytes.meta.name, source.bytes.owner) for source in sources)
        wait_for_gpu(source.bytes.owner for source in sources)
        array = (abi.CSource * len(sources))(
            *(abi.CSource(position, source.address, source.nbytes, rounds) for position, source, rounds in sources)
        )
        self._call("write", array, len(sources))
