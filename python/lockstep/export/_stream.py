"""Stream: how a Publisher writes what a generator yields, one tensor after the other."""

import contextlib
import dataclasses
import itertools
import os
import threading
import traceback
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, Sequence, Tuple, Union

from lockstep.core import arguments
from lockstep.core.checkpoint_files import StoredTensor, stored_tensors
from lockstep.core.delayed_interrupt import delayed_interrupt
from lockstep.core.dtypes import framework_name
from lockstep.core.errors import BadDataError, Error, StateError, bad_tensor
from lockstep.core.handle import CommonOptions, Handle
from lockstep.core.publication import Publication
from lockstep.core.tensors import NamedTensors, TensorMeta, describe, entries_of, local_of, meta_of, pair, refuse_shards
from lockstep.export._c_tensors import gpu_trouble
from lockstep.export._in_place import InPlace
from lockstep.export._parts import exported_dtype
from lockstep.export._ties import came_apart

if TYPE_CHECKING:
    from typing_extensions import Unpack

# A checkpoint's directory; or descriptions, or tensors, which may come from a generator.
Layout = Union[str, "os.PathLike[str]", NamedTensors, Iterable[TensorMeta]]
Patterns = Union[str, Iterable[str]]  # of names, as a shell has them: "mtp.*"

_HEAD = "lm_head.weight"
# PyTorch copies what the library does not: by pieces, for a GPU makes a copy of what it converts or makes contiguous.
_PIECE_BYTES = 8 << 20


class Stream:
    """A model that is written in place, tensor by tensor. A rank that writes nothing opens nothing."""

    def __init__(
        self,
        layout: Layout,
        *,
        model: str,
        rank: int = 0,
        writers: int = 1,
        dtype: Any = None,
        ignore: Patterns = (),
        keep: Patterns = (),
        attachments: "Mapping[str, str] | None" = None,
        **options: "Unpack[CommonOptions]",
    ) -> None:
        self._dtype = dtype
        self._publishing = threading.Lock()  # held while a version is written
        self._places: "dict[str, Tuple[TensorMeta, int]]" = {}  # of the layout, by name
        self._ignored = arguments.matching("ignore", ignore)
        writes = rank < writers
        metas, self._kept = _metas(layout, dtype, writes, self._ignored, arguments.matching("keep", keep))
        if writers < 1 or rank < 0:  # not before: a stream is taken to its end
            raise BadDataError(f"rank {rank} of {writers} writers: ranks go from 0, and there must be a writer")
        if not writes:
            self.handle = Handle(model=model, **options)
            self.handle.writes = False
            self.handle.closed = "writes nothing on this rank; call it on one that does"
            self.layout = []
            return
        self._own = _share(metas, rank, writers)
        self._in_place = InPlace(
            metas, rank=rank, ranks=writers, owns=self._own, attachments=attachments, model=model, **options
        )
        self.handle, self.layout = self._in_place.handle, self._in_place.layout
        self._places = {meta.name: (meta, offset) for meta, offset in self.layout}

    def publish(self, label: "str | int | None", tensors: "NamedTensors | None", version: "int | None") -> Publication:
        entries = _entries(() if tensors is None else tensors)
        with _taken_to_its_end(entries):
            if tensors is None:
                raise BadDataError("publish: give tensors=, the stream of this version")
            name = arguments.label(label)
            if not self.handle.writes:
                return Publication(0 if version is None else arguments.version_number(version), name.decode())
            number = self.handle.number(version)
            return self.handle.publish_or_skip(lambda: self._publish_stream(number, entries, name), number, name)

    def _publish_stream(self, version: int, entries: "Iterator[Any]", label: bytes) -> Publication:
        if not self._publishing.acquire(blocking=False):
            raise StateError("publish: another publish of this publisher is under way, in this thread or another one")
        try:
            data = self._in_place.begin(version)
            missing = dict.fromkeys(self._places)
            for entry in entries:
                name, tensor = pair(len(self._places) - len(missing), entry)
                if self._ignored(name):
                    del entry, tensor
                    continue
                refuse_shards(name, tensor)
                embedding = self._tied(name, tensor)
                if embedding is not None:
                    self._check_tied(name, tensor, embedding, data, missing)
                else:
                    self._check(name, tensor, missing)
                    del missing[name]
                if name in self._own:
                    self._copy(data, name, tensor)
                del entry, tensor  # the generator makes the next one now
            for name in [name for name in missing if name in self._kept]:
                del missing[name]
                self._copy_kept(data, name)
            if missing:
                more = f", nor {len(missing) - 1} more" if len(missing) > 1 else ""
                raise bad_tensor(
                    next(iter(missing)),
                    f"the stream ended without it{more}; ignore= publishes the model without, keep= as a checkpoint has it",
                )
            return self._in_place.commit(label.decode())
        except BaseException:
            with contextlib.suppress(Error):  # what went wrong first is what the caller must see
                self._in_place.abort()
            raise
        finally:
            self._publishing.release()

    def _check(self, name: str, tensor: Any, missing: "Mapping[str, None]") -> None:
        if name not in self._places:
            raise bad_tensor(
                name, "the model was opened without it; open it with every tensor, or leave it out by ignore="
            )
        if name not in missing:
            raise bad_tensor(name, "the stream gave it before; give every tensor once")
        given, (opened, _) = meta_of(name, tensor), self._places[name]
        if given != opened and _rounded(self._dtype, name, tensor) != opened:
            raise bad_tensor(
                name,
                f"it is {given.dtype} {list(given.shape)}, the model was opened with "
                f"{opened.dtype} {list(opened.shape)}",
            )

    def _tied(self, name: str, tensor: Any) -> "str | None":
        """The embedding that ``tensor`` is tied to where it is a head that a checkpoint is without: the first tensor of
        its dtype and shape, which is the same on every rank."""
        if name in self._places or not name.endswith(_HEAD):
            return None
        given = _rounded(self._dtype, name, tensor)
        alike = (meta.name for meta, _ in self.layout if (meta.dtype, meta.shape) == (given.dtype, given.shape))
        return next(alike, None)

    def _check_tied(
        self, name: str, tensor: Any, embedding: str, data: memoryview, missing: "Mapping[str, None]"
    ) -> None:
        """Of the ranks that write, the one that wrote the embedding compares."""
        opened, offset = self._places[embedding]
        if embedding in missing:
            raise bad_tensor(
                name, f'it came before "{embedding}", which it may be tied to; give it later, or not at all'
            )
        if embedding in self._own and not _equal_by_torch(data[offset : offset + opened.nbytes], opened.dtype, tensor):
            raise came_apart(name, embedding, said="the model was opened without it, as one that ties it to")

    def _copy(self, data: memoryview, name: str, tensor: Any) -> None:
        opened, offset = self._places[name]
        if _readable_in_place(tensor):
            given = meta_of(name, tensor)
            if given == opened:
                self._in_place.write(name, tensor)
                return
            if (given.dtype, opened.dtype) == ("F32", "BF16"):
                self._in_place.write_rounded(name, tensor)
                return
        local_of(name, tensor)  # refuses what cannot be read
        if opened.nbytes:
            _copy_by_torch(data[offset : offset + opened.nbytes], opened.dtype, tensor)
            self._in_place.tensors_done([name])

    def _copy_kept(self, data: memoryview, name: str) -> None:
        opened, offset = self._places[name]
        if name in self._own and opened.nbytes:
            self._kept[name].read_into(data[offset : offset + opened.nbytes])
            self._in_place.tensors_done([name])


def _entries(stream: "NamedTensors | Iterable[TensorMeta]") -> "Iterator[Any]":
    """What a stream gives; past its end it is not asked again."""
    return itertools.chain(entries_of(stream))


@contextlib.contextmanager
def _taken_to_its_end(entries: "Iterator[Any]") -> "Iterator[None]":
    """After the block, and before what it raises is, takes what is left of ``entries``."""
    with delayed_interrupt(second_at_once=True):
        try:
            yield
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # they have the tensor
            with contextlib.suppress(Exception):  # what went wrong first is what the caller must see
                deque(entries, maxlen=0)
            raise
        deque(entries, maxlen=0)


def _metas(
    layout: Layout,
    dtype: Any,
    writes: bool,
    is_ignored: "Callable[[str], bool]",
    is_kept: "Callable[[str], bool]",
) -> "Tuple[list[TensorMeta], dict[str, StoredTensor]]":
    """What is published, and what of it a stream need not give."""
    if isinstance(layout, (str, os.PathLike)):
        if not writes:
            return [], {}  # another host may not have it
        stored = [tensor for tensor in stored_tensors(layout) if not is_ignored(tensor.meta.name)]
        kept = {tensor.meta.name: tensor for tensor in stored if is_kept(tensor.meta.name)}
        return describe([tensor.meta for tensor in stored]), kept
    entries = _entries(layout)
    with _taken_to_its_end(entries):
        metas = [meta for meta in describe(_described(entries, dtype)) if not is_ignored(meta.name)]
    for meta in metas:
        if is_kept(meta.name):
            raise bad_tensor(meta.name, "keep= is for a layout that is a checkpoint's directory, which has its bytes")
    return metas, {}


def _described(entries: "Iterator[Any]", dtype: Any) -> "Iterator[TensorMeta]":
    position = 0
    for entry in entries:
        yield entry if isinstance(entry, TensorMeta) else _rounded(dtype, *pair(position, entry))
        position += 1
        del entry  # the generator makes the next one now


def _rounded(dtype: Any, name: str, tensor: Any) -> TensorMeta:
    """What ``tensor`` is published as when the dtype of float32 tensors is ``dtype``."""
    meta = meta_of(name, tensor)
    return meta if dtype is None else dataclasses.replace(meta, dtype=exported_dtype(name, tensor, dtype))


def _share(metas: "Sequence[TensorMeta]", rank: int, writers: int) -> "set[str]":
    """The names that ``rank`` writes: each tensor goes to the writer that has the fewest bytes before it."""
    names: "list[set[str]]" = [set() for _ in range(writers)]
    filled = [0] * writers
    for meta in metas:
        least = filled.index(min(filled))
        names[least].add(meta.name)
        filled[least] += meta.nbytes
    return names[rank]


def _readable_in_place(tensor: Any) -> bool:
    """Whether the library may copy ``tensor`` from where it lies."""
    if not hasattr(tensor, "data_ptr"):
        return True
    if tensor.device.type != "cpu" and not (tensor.is_cuda and not gpu_trouble()):
        return False
    return str(tensor.layout) == "torch.strided" and tensor.is_contiguous()


def _copy_by_torch(data: memoryview, dtype: str, tensor: Any) -> None:
    for part, piece in _pieces(data, dtype, tensor):
        part.copy_(piece)


def _equal_by_torch(data: memoryview, dtype: str, tensor: Any) -> bool:
    """Whether ``data`` is what _copy_by_torch would make it."""
    import torch

    return all(
        torch.equal(part.view(torch.uint8), part.new_empty(part.shape).copy_(piece).view(torch.uint8))
        for part, piece in _pieces(data, dtype, tensor)
    )


def _pieces(data: memoryview, dtype: str, tensor: Any) -> "Iterator[Tuple[Any, Any]]":
    """Of ``data`` as a tensor, and of ``tensor``: the same rows of each."""
    import torch

    source = torch.atleast_1d(torch.as_tensor(tensor).detach())
    target = torch.frombuffer(data, dtype=torch.uint8).view(getattr(torch, framework_name(dtype))).view(source.shape)
    rows = max(1, _PIECE_BYTES * len(source) // len(data))
    return zip(target.split(rows), source.split(rows))
