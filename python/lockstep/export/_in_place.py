"""InPlace: how a Publisher writes a model of which the caller fills shared memory. _stream.py writes through it, too."""

import contextlib
import ctypes
import struct
from typing import TYPE_CHECKING, Any, Iterable, Mapping, NamedTuple, Sequence

from lockstep.core import abi, arguments
from lockstep.core.delayed_interrupt import delayed_interrupt
from lockstep.core.errors import BadDataError, Error, StateError, bad_tensor
from lockstep.core.handle import CommonOptions, Handle
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

if TYPE_CHECKING:
    from typing_extensions import Unpack

_C_TENSOR = struct.Struct("@PPPIQ")  # abi.CTensor: name, dtype, shape, rank, offset
assert _C_TENSOR.size == ctypes.sizeof(abi.CTensor)


class _Source(NamedTuple):
    """What is written to the tensor at ``position``; ``rounds``: float32 of it becomes bfloat16."""

    position: int
    bytes: TensorBytes
    rounds: bool = False


class InPlace:
    """One writer of a model. Between ``begin`` and ``commit`` it fills what it owns. ``publish`` does all of that with whole
    tensors."""

    def __init__(
        self,
        layout: "NamedTensors | Iterable[TensorMeta]",
        *,
        model: str,
        rank: int = 0,
        ranks: int = 1,
        owns: "Iterable[str] | None" = None,
        attachments: "Mapping[str, str] | None" = None,
        **options: "Unpack[CommonOptions]",
    ) -> None:
        self.handle = Handle(model=model, **options)
        entries = list(entries_of(layout))
        tensors, offsets = assign_offsets(describe(entries))
        refuse_names_in_memory(tensors)
        warn_of_ties(entries)
        self.layout = list(zip(tensors, offsets))
        self._data_bytes = sum(meta.nbytes for meta in tensors)
        self._positions = {meta.name: position for position, meta in enumerate(tensors)}
        writers = arguments.count("ranks", ranks, least=1)
        owned = self._owned(owns, writers)
        c_tensors, described = _c_tensors(tensors, offsets)
        self._version = 0  # that was begun last
        self.handle.counts = writers == 1
        self.handle.open(
            tensors=c_tensors,
            tensor_count=len(tensors),
            owned=_c_positions(owned),
            owned_count=len(owned),
            rank=arguments.count("rank", rank),
            ranks=writers,
            attachments=attachments,
        )
        del described  # the library has read it

    def publish(self, label: "str | int | None", tensors: "NamedTensors | None", version: "int | None") -> Publication:
        if tensors is None:
            raise BadDataError("publish: give tensors=, those that this rank owns")
        sources = [self._source(name, tensor) for name, tensor in named(tensors)]
        name = arguments.label(label)
        self.handle.pointer()
        with self.handle.lock, delayed_interrupt():
            number = self.handle.number(version)
            return self.handle.publish_or_skip(lambda: self._publish_sources(number, sources, name), number, name)

    def begin(self, version: "int | None") -> memoryview:
        number = self.handle.number(version)
        data = ctypes.c_void_p()
        before, self._version = self._version, number
        try:
            self.handle.call("begin", number, ctypes.byref(data))
        except StateError:
            self._version = before  # it is being written still
            raise
        return self.handle.lend(data.value or 0, self._data_bytes)

    def write(self, name: str, tensor: Any) -> None:
        self._write([self._source(name, tensor)])

    def write_rounded(self, name: str, tensor: Any) -> None:
        """As ``write``, of a float32 tensor that is published as bfloat16."""
        self._write([_Source(self._positions[name], bytes_of(name, tensor), True)])

    def tensors_done(self, names: "Iterable[str]") -> None:
        positions = [self._position(name) for name in names]
        self.handle.call("tensors_done", _c_positions(positions), len(positions))

    def commit(self, label: "str | int | None") -> Publication:
        name = arguments.label(label)
        with delayed_interrupt():
            return self.handle.commit("commit", self._version, name, name)

    def abort(self) -> None:
        self.handle.call("abort", self._version, None)

    def _publish_sources(self, version: int, sources: "Sequence[_Source]", label: bytes) -> Publication:
        self.begin(version)
        try:
            self._write(sources)
            return self.commit(label.decode())
        except BaseException:
            with contextlib.suppress(Error):  # what went wrong first is what the caller must see
                self.abort()
            raise

    def _owned(self, owns: "Iterable[str] | None", ranks: int) -> "list[int]":
        if owns is None:
            if ranks > 1:
                raise BadDataError(
                    f"ranks is {ranks}, and each tensor has one writer; give owns=, the names of this one's"
                )
            return list(range(len(self.layout)))
        owned: "set[int]" = set()
        for name in owns:
            position = self._positions.get(name)
            if position is None:
                raise bad_tensor(name, "owns= has it, and the layout does not")
            if position in owned:
                raise bad_tensor(name, "owns= has it twice")
            owned.add(position)
        return sorted(owned)

    def _position(self, name: str) -> int:
        position = self._positions.get(name)
        if position is None:
            raise bad_tensor(name, "the model was opened without it; reopen it with every tensor")
        return position

    def _source(self, name: str, tensor: Any) -> "_Source":
        position = self._position(name)
        source = bytes_of(name, tensor)
        opened, _ = self.layout[position]
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
        self.handle.call("write", array, len(sources))


def _c_positions(positions: "Sequence[int]") -> "ctypes.Array[ctypes.c_size_t]":
    """For the library, which takes a null pointer for all tensors."""
    return (ctypes.c_size_t * max(1, len(positions)))(*positions)


def _c_tensors(tensors: "Sequence[TensorMeta]", offsets: "Sequence[int]") -> "tuple[ctypes.Array[abi.CTensor], Any]":
    """The descriptions for the library, and what must live as long as they do. Packed, since assigning the fields
    of 100,000 structures takes a second."""
    dtypes = {dtype: ctypes.create_string_buffer(dtype.encode()) for dtype in {m.dtype for m in tensors}}
    dtype_at = {dtype: ctypes.addressof(buffer) for dtype, buffer in dtypes.items()}
    encoded = [meta.name.encode() for meta in tensors]
    names = ctypes.create_string_buffer(b"\0".join(encoded))
    extents = [extent for meta in tensors for extent in meta.shape]
    shapes = (ctypes.c_uint64 * max(1, len(extents)))(*extents)
    name_at, shape_at = ctypes.addressof(names), ctypes.addressof(shapes)
    packed = bytearray(_C_TENSOR.size * len(tensors))
    for position, (meta, offset) in enumerate(zip(tensors, offsets)):
        rank = len(meta.shape)
        _C_TENSOR.pack_into(packed, position * _C_TENSOR.size, name_at, dtype_at[meta.dtype], shape_at, rank, offset)
        name_at += len(encoded[position]) + 1
        shape_at += 8 * rank
    return (abi.CTensor * len(tensors)).from_buffer(packed), (dtypes, names, shapes)
