"""InPlaceWriter: one writer of a model, which fills shared memory itself."""

import contextlib
import ctypes
import json
import struct
import weakref
from typing import TYPE_CHECKING, Any, Iterable, Mapping, NamedTuple, Sequence, Tuple

from lockstep.core import abi, arguments
from lockstep.core.delayed_interrupt import delayed_interrupt
from lockstep.core.errors import BadDataError, Error, StateError
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
from lockstep.export._c_tensors import refuse_gpu_tensors, wait_for_gpu
from lockstep.export._saved_tensors import refuse_names_in_memory
from lockstep.export._ties import warn_of_ties
from lockstep.export._writer import Writer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from lockstep.export._writer import CommonOptions

_C_TENSOR = struct.Struct("@PPPIQ")  # abi.CTensor: name, dtype, shape, rank, offset
assert _C_TENSOR.size == ctypes.sizeof(abi.CTensor)


class _Source(NamedTuple):
    """What is written to the tensor at ``position``; ``rounds``: float32 of it becomes bfloat16."""

    position: int
    bytes: TensorBytes
    rounds: bool = False


class InPlaceWriter(Writer):
    """A model whose bytes the caller puts into shared memory; made by ``Publisher.in_place``, one for each writer.

    Between ``begin`` and ``commit`` a rank fills what it owns. ``publish`` does all of that with whole tensors.
    """

    def __init__(
        self,
        layout: "NamedTensors | Iterable[TensorMeta]",
        *,
        model: str,
        rank: int = 0,
        ranks: int = 1,
        attachments: "Mapping[str, str] | None" = None,
        **options: "Unpack[CommonOptions]",
    ) -> None:
        super().__init__(model=model, **options)
        entries = list(entries_of(layout))
        self._tensors, self._offsets = assign_offsets(describe(entries))
        refuse_names_in_memory(self._tensors)
        warn_of_ties(entries)
        self._data_bytes = sum(meta.nbytes for meta in self._tensors)
        self._positions = {meta.name: position for position, meta in enumerate(self._tensors)}
        c_tensors, described = self._c_tensors()
        self._given: "list[Tuple[weakref.ref[Any], weakref.ref[memoryview]]]" = []  # by begin(): memory, and its view
        self._version = 0  # that was begun last
        self._counts = ranks == 1
        self._open(
            tensors=c_tensors,
            tensor_count=len(self._tensors),
            rank=arguments.count("rank", rank),
            ranks=arguments.count("ranks", ranks, least=1),
            attachments=None if attachments is None else json.dumps(dict(attachments)).encode(),
            **self._options,
        )
        del described  # the library has read it
        self._opened()

    @property
    def layout(self) -> "list[Tuple[TensorMeta, int]]":
        return list(zip(self._tensors, self._offsets))

    def _publish(self, label: "str | int | None", tensors: "NamedTensors | None", version: "int | None") -> Publication:
        if tensors is None:
            raise BadDataError("publish: give tensors=, those that this rank owns")
        sources = [self._source(name, tensor) for name, tensor in named(tensors)]
        name = arguments.label(label)
        self._open_handle()
        self._published_stats = {}
        with self._lock, delayed_interrupt():
            number = self._number(version)
            return self._absence.publish(lambda: self._publish_sources(number, sources, name), number, name)

    def _next_number(self) -> int:
        if not self._counts:  # one that missed a version would put its part under another one's number
            raise BadDataError("version: several writers make a version; give its number, the same on each of them")
        return super()._next_number()

    def begin(self, version: "int | None" = None) -> memoryview:
        number = self._number(version)
        data = ctypes.c_void_p()
        before, self._version, self._published_stats = self._version, number, {}
        try:
            self._call("begin", number, ctypes.byref(data))
        except StateError:
            self._version = before  # it is being written still
            raise
        memory: Any = (ctypes.c_ubyte * self._data_bytes).from_address(data.value or 0)
        memory.publisher = self  # so that it is not collected, and closed, while the memory is in use
        view = memoryview(memory).cast("B")
        self._given = [
            *(given for given in self._given if given[0]() is not None),
            (weakref.ref(memory), weakref.ref(view)),
        ]
        return view

    def write(self, name: str, tensor: Any) -> None:
        self._write([self._source(name, tensor)])

    def _write_rounded(self, name: str, tensor: Any) -> None:
        """As ``write``, of a float32 tensor that is published as bfloat16."""
        self._write([_Source(self._positions[name], bytes_of(name, tensor), True)])

    def ranges_done(self, ranges: Sequence[Tuple[int, int]]) -> None:
        array = (abi.CRange * len(ranges))(*(abi.CRange(*span) for span in ranges))
        self._call("ranges_done", array, len(ranges))

    def commit(self, label: "str | int | None" = None) -> Publication:
        name = arguments.label(label)
        with delayed_interrupt():
            return self._commit("commit", self._version, name, name)

    def abort(self) -> None:
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

    def _publish_sources(self, version: int, sources: "Sequence[_Source]", label: bytes) -> Publication:
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
