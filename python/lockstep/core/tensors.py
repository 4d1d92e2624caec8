"""What a tensor is to Lockstep: name, safetensors dtype, shape, and bytes somewhere in this process.

Nothing here imports NumPy or PyTorch: an array is whatever has ``data_ptr()`` (PyTorch) or ``__array_interface__``
(NumPy and its relatives). Bytes are never copied here; a ``TensorBytes`` only points at them.
"""

import functools
from dataclasses import dataclass
from typing import Any, Iterable, Mapping, NamedTuple, Sequence, Tuple, Union

from lockstep.core.dtypes import array_dtype, element_bits, known_dtypes, safetensors_dtype, unit_bytes
from lockstep.core.errors import BadDataError, bad_tensor


@dataclass(frozen=True)
class TensorMeta:
    """A tensor's description: HuggingFace name, dtype as safetensors names it ("BF16"), shape (() is a scalar)."""

    name: str
    dtype: str
    shape: Tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes. BadDataError when the elements do not fill whole bytes."""
        bits = element_bits(self.dtype)
        for extent in self.shape:
            bits *= extent
        if bits % 8:
            raise BadDataError(f'tensor "{self.name}": {self.dtype} {list(self.shape)} does not fill whole bytes')
        return bits // 8

    @property
    def unit_bytes(self) -> int:
        """What the tensor's offset must be a multiple of."""
        return unit_bytes(self.dtype)


@dataclass(frozen=True)
class CheckpointTensor:
    """A checkpoint's tensor that is made of a parameter: its box of ``size`` at ``at`` is the parameter's that begins at ``start``.
    Without ``at``, all of it is. ``view``: the shape that ``at`` and ``size`` are in."""

    name: str
    shape: Tuple[int, ...]
    start: Tuple[int, ...]
    at: Tuple[int, ...] = ()
    size: Tuple[int, ...] = ()
    view: Tuple[int, ...] = ()


class TensorBytes(NamedTuple):
    """A tensor's bytes in this process, or on a GPU. ``owner`` keeps them alive."""

    meta: TensorMeta
    address: int
    nbytes: int
    owner: Any


class LocalTensor(NamedTuple):
    """What a rank holds of a training tensor: any strides, any device.

    ``owner`` keeps the memory alive. ``frozen``: its bytes never change. ``converts``: float32 may become bfloat16.
    """

    name: str
    dtype: str
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]  # in elements
    address: int
    owner: Any
    frozen: bool = False
    converts: bool = False

    def description(self) -> "Tuple[Any, ...]":
        """All that may not change while an exporter lives; the memory may move."""
        return self.name, self.dtype, self.shape, self.strides, self.frozen


NamedTensors = Union[Mapping[str, Any], Iterable[Tuple[str, Any]]]


def _is_contiguous(shape: Sequence[int], strides: "Sequence[int] | None", item_bytes: int) -> bool:
    if strides is None or 0 in shape:
        return True
    expected = item_bytes
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def _torch_meta(name: str, tensor: Any) -> TensorMeta:
    dtype = safetensors_dtype(name, tensor.dtype)
    shape = tuple(tensor.shape)
    if dtype == "F4":  # PyTorch counts bytes of two elements each, safetensors counts elements
        if not shape:
            raise bad_tensor(name, "a scalar of packed 4-bit elements cannot be described; give it a dimension")
        shape = (*shape[:-1], shape[-1] * 2)
    return TensorMeta(name, dtype, shape)


def refuse_shards(name: str, tensor: Any) -> None:
    """BadDataError for a tensor of which this rank has a part, or which has no values, where a whole one is wanted."""
    refuse_partitioned(name, tensor)
    if hasattr(tensor, "to_local"):
        raise bad_tensor(
            name, "it is a DTensor; give tensor.full_tensor(), on every rank, or make the publisher by from_fsdp"
        )
    if getattr(tensor, "is_meta", False):
        raise bad_tensor(name, 'it is on the device "meta" and has no values; load it first')


def _torch_bytes(name: str, tensor: Any) -> TensorBytes:
    refuse_shards(name, tensor)
    if str(tensor.layout) != "torch.strided":
        raise bad_tensor(name, f"it is stored as {tensor.layout}; publish tensor.to_dense()")
    if tensor.device.type not in ("cpu", "cuda"):
        raise bad_tensor(name, f"it is on {tensor.device}; publish tensor.cpu()")
    if tensor.is_conj() or tensor.is_neg():
        raise bad_tensor(name, "it is a lazy conjugate or negative view; publish tensor.resolve_conj().resolve_neg()")
    if not tensor.is_contiguous():
        raise bad_tensor(name, "it is not contiguous; publish tensor.contiguous()")
    _refuse_freed(name, tensor)
    return TensorBytes(_torch_meta(name, tensor), tensor.data_ptr(), tensor.nelement() * tensor.element_size(), tensor)


def _refuse_freed(name: str, tensor: Any) -> None:
    if tensor.nelement() and not tensor.untyped_storage().nbytes():
        raise bad_tensor(
            name, "its memory was freed (its storage has 0 bytes), as some trainers do between steps; publish it before"
        )


@functools.lru_cache(maxsize=256)
def _dtype_name(dtype: Any) -> "str | None":
    """NumPy makes the name at each use, which takes longer than the rest of a tensor's description."""
    return getattr(dtype, "name", None)


@functools.lru_cache(maxsize=256)
def _is_numpy_scalar(kind: Any) -> bool:
    return any(base.__name__ == "generic" and base.__module__ == "numpy" for base in kind.__mro__)


def _array_meta(name: str, array: Any, interface: Mapping[str, Any]) -> TensorMeta:
    typestr = interface["typestr"]
    if typestr[0] == ">":
        raise bad_tensor(name, "its elements are big-endian; publish array.astype(array.dtype.newbyteorder('<'))")
    dtype_name = _dtype_name(getattr(array, "dtype", None))
    if dtype_name is not None:
        dtype = safetensors_dtype(name, dtype_name)
    else:
        dtype = array_dtype(name, typestr)
    return TensorMeta(name, dtype, tuple(interface["shape"]))


def _array_bytes(name: str, array: Any) -> TensorBytes:
    kind: Any = type(array)
    if _is_numpy_scalar(kind):
        raise bad_tensor(name, "it is a NumPy scalar, which has no memory of its own; publish numpy.asarray(value)")
    interface = array.__array_interface__
    meta = _array_meta(name, array, interface)
    if interface.get("data") is None:
        raise bad_tensor(name, "its __array_interface__ gives no data pointer; publish numpy.asarray(array)")
    if not _is_contiguous(meta.shape, interface.get("strides"), element_bits(meta.dtype) // 8):
        raise bad_tensor(name, "it is not C-contiguous; publish numpy.ascontiguousarray(array)")
    return TensorBytes(meta, interface["data"][0], meta.nbytes, array)


def check_name(name: Any) -> None:
    """BadDataError for what is no name of a tensor: C and JSON would cut it short, or refuse it in words of their own."""
    if isinstance(name, str) and name.isprintable():
        return
    if not isinstance(name, str):
        raise BadDataError(f"a tensor's name is {name!r}, of type {type(name).__name__}; give text")
    if "\0" in name:
        raise BadDataError(f"tensor {name!r}: there is a NUL character in its name")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise BadDataError(f"tensor {name!r}: its name cannot be written in UTF-8: {error.reason}") from None


def refuse_partitioned(name: str, tensor: Any) -> None:
    """BadDataError for a parameter that DeepSpeed's ZeRO-3 has emptied: each rank keeps its part of it elsewhere."""
    whole = getattr(tensor, "ds_shape", None)
    if whole is not None and tuple(whole) != tuple(tensor.shape):
        raise bad_tensor(
            name,
            f"DeepSpeed ZeRO-3 has partitioned it, and nothing of its {list(whole)} is left in it; gather it first "
            "(deepspeed.zero.GatheredParameters)",
        )


def meta_of(name: str, tensor: Any) -> TensorMeta:
    """Describes ``tensor``, which may be on any device, PyTorch's "meta" among them. BadDataError names it."""
    refuse_partitioned(name, tensor)
    if hasattr(tensor, "data_ptr"):
        return _torch_meta(name, tensor)
    if hasattr(tensor, "__array_interface__"):
        return _array_meta(name, tensor, tensor.__array_interface__)
    raise bad_tensor(
        name, f"a {type(tensor).__name__} has neither data_ptr() nor __array_interface__; publish an array"
    )


def bytes_of(name: str, tensor: Any) -> TensorBytes:
    """Points at ``tensor``'s bytes. BadDataError names the tensor and says what to publish instead."""
    if hasattr(tensor, "data_ptr"):
        found = _torch_bytes(name, tensor)
    elif hasattr(tensor, "__array_interface__"):
        found = _array_bytes(name, tensor)
    else:
        raise bad_tensor(
            name, f"a {type(tensor).__name__} has neither data_ptr() nor __array_interface__; publish an array"
        )
    if found.nbytes != found.meta.nbytes:
        raise bad_tensor(name, f"its memory holds {found.nbytes} bytes, its dtype and shape say {found.meta.nbytes}")
    return found


def local_of(name: str, tensor: Any, *, frozen: bool = False, converts: bool = False) -> LocalTensor:
    """Points at a shard's memory, in place, whatever its strides. BadDataError names the tensor."""
    check_name(name)
    refuse_partitioned(name, tensor)
    if not hasattr(tensor, "data_ptr"):
        found = bytes_of(name, tensor)
        shape = found.meta.shape
        strides = contiguous_strides(shape)
        return LocalTensor(name, found.meta.dtype, shape, strides, found.address, tensor, frozen, converts)
    if hasattr(tensor, "to_local"):
        raise bad_tensor(name, "it is a DTensor, which describes itself: give it by named_tensors or fsdp")
    if str(tensor.layout) != "torch.strided":
        raise bad_tensor(name, f"it is stored as {tensor.layout}; a plan copies strided tensors only")
    if tensor.is_conj() or tensor.is_neg():
        raise bad_tensor(name, "it is a lazy conjugate or negative view; give tensor.resolve_conj().resolve_neg()")
    dtype = safetensors_dtype(name, tensor.dtype)
    if element_bits(dtype) < 8:
        raise bad_tensor(name, f"{dtype} packs elements into bytes; only Publisher takes such tensors, whole")
    _refuse_freed(name, tensor)
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    return LocalTensor(name, dtype, shape, strides, tensor.data_ptr(), tensor, frozen, converts)


def contiguous_strides(shape: Sequence[int]) -> "Tuple[int, ...]":
    """Strides, in elements, of a contiguous tensor of ``shape``."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


_WANTED = (
    "give names and tensors: lockstep.saved_tensors(model) of transformers' models, module.state_dict(), or a mapping"
)


def entries_of(tensors: "NamedTensors | Iterable[TensorMeta]") -> "Iterable[Any]":
    """A mapping's items, or what is in an iterable. BadDataError where it is neither, or a module or one tensor."""
    if isinstance(tensors, Mapping):
        return tensors.items()
    if callable(getattr(tensors, "state_dict", None)):
        raise BadDataError(f"a {type(tensors).__name__} is a module, not its tensors; {_WANTED}")
    if isinstance(tensors, str) or hasattr(tensors, "data_ptr") or not isinstance(tensors, Iterable):
        raise BadDataError(f"a {type(tensors).__name__} was given for a model's tensors; {_WANTED}")
    return tensors


def named(tensors: NamedTensors) -> "list[Tuple[str, Any]]":
    """(name, tensor) pairs of a mapping or of an iterable of pairs, as ``model.named_parameters()`` gives. BadDataError
    where it gives something else."""
    return [pair(position, entry) for position, entry in enumerate(entries_of(tensors))]


def pair(position: int, entry: Any) -> "Tuple[str, Any]":
    """``entry`` as a name and a tensor. BadDataError where it is something else; ``position`` is for the sentence."""
    # A tensor must not be taken for a pair: one of two rows can be unpacked like one.
    is_pair = isinstance(entry, (tuple, list)) and len(entry) == 2
    if is_pair and isinstance(entry[0], str):
        return entry[0], entry[1]
    there = f"({', '.join(type(part).__name__ for part in entry)})" if is_pair else f"a {type(entry).__name__}"
    raise BadDataError(f"entry {position} of the model's tensors is {there} and has no name; {_WANTED}")


def describe(tensors: "NamedTensors | Iterable[TensorMeta]") -> "list[TensorMeta]":
    """The descriptions of a model's tensors, given as such or as the tensors themselves."""
    metas = [
        entry if isinstance(entry, TensorMeta) else meta_of(*pair(position, entry))
        for position, entry in enumerate(entries_of(tensors))
    ]
    for meta in metas:
        check_name(meta.name)
        if not element_bits(meta.dtype):
            raise bad_tensor(meta.name, f'safetensors has no dtype "{meta.dtype}"; it has {", ".join(known_dtypes())}')
        if any(extent < 0 for extent in meta.shape):
            raise bad_tensor(meta.name, f"its shape {list(meta.shape)} has a negative extent")
    return metas


def described(entries: "Iterable[Mapping[str, Any]]") -> "list[Tuple[TensorMeta, int]]":
    """Descriptions and byte offsets, from the library's JSON of tensors_meta."""
    return [(TensorMeta(entry["name"], entry["dtype"], tuple(entry["shape"])), entry["offset"]) for entry in entries]


def assign_offsets(metas: "Sequence[TensorMeta]") -> "tuple[list[TensorMeta], list[int]]":
    """Export order and offsets, back to back. As given, unless a tensor would then start unaligned: then stably sorted
    by falling unit size, which aligns them all."""
    ordered = list(metas)
    offsets = _back_to_back(ordered)
    if any(offset % meta.unit_bytes for meta, offset in zip(ordered, offsets)):
        ordered.sort(key=lambda meta: -meta.unit_bytes)
        offsets = _back_to_back(ordered)
    return ordered, offsets


def _back_to_back(metas: "Sequence[TensorMeta]") -> "list[int]":
    offsets, end = [], 0
    for meta in metas:
        offsets.append(end)
        end += meta.nbytes
    return offsets
