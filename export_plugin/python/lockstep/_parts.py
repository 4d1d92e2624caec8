"""Parts: what a rank says of itself (its sheet, export_plugin/plan/FORMAT.md) and where the memory is.

A model is one part or several: parameters of Megatron-core, DTensors of FSDP2, plain tensors, an adapter. Every rank
gives the same parts in the same order.
"""

import abc
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Mapping, Sequence, Tuple, Union

from lockstep._errors import BadDataError
from lockstep._tensors import LocalTensor, local_of, named, safetensors_dtype

SHEET_FORMAT = 1

# Which parameters never change: their names, a predicate on names, or "requires_grad": those that have it off.
Frozen = Union[None, str, Iterable[str], Callable[[str], bool]]


class Part(abc.ABC):
    """One part of a model, as this rank has it. ``converts``: float32 tensors may be rounded to bfloat16 on the way."""

    converts: bool = False

    @abc.abstractmethod
    def sheet(self) -> "dict[str, Any]":
        """The part's JSON."""

    def prepare(self) -> None:
        """Makes the tensors whole before they are read. Called at the start of every publish on every rank, so it may
        communicate as the trainer does."""

    @abc.abstractmethod
    def locals(self) -> "list[LocalTensor]":
        """This rank's tensors in the sheet's order. Asked at every publish: memory may move, shapes may not."""

    def attachments(self) -> "dict[str, str]":
        """Small files that belong to the model, name to text."""
        return {}


@dataclass(frozen=True)
class Box:
    """A block of a whole tensor: where it starts in the local shard and in the whole tensor, and its size."""

    local: Tuple[int, ...]
    whole: Tuple[int, ...]
    size: Tuple[int, ...]

    def json(self) -> "dict[str, list[int]]":
        return {"local": list(self.local), "global": list(self.whole), "size": list(self.size)}


@dataclass(frozen=True)
class Into:
    """A HuggingFace tensor made of a training tensor: the block of its ``shape`` that starts at ``start``."""

    name: str
    shape: Tuple[int, ...]
    start: Tuple[int, ...]

    def json(self) -> "dict[str, Any]":
        return {"name": self.name, "shape": list(self.shape), "from": list(self.start)}


@dataclass(frozen=True)
class Shard:
    """What this rank holds of one tensor.

    ``name``, ``dtype`` and ``shape`` are those of the whole tensor as HuggingFace has it; ``boxes`` say which blocks of
    it the local tensor of ``local_shape`` holds (none: this rank holds nothing of it).
    """

    name: str
    dtype: str
    shape: Tuple[int, ...]
    local_shape: Tuple[int, ...]
    boxes: "Sequence[Box]"
    frozen: bool = False
    into: "Sequence[Into]" = ()

    def json(self) -> "dict[str, Any]":
        entry: "dict[str, Any]" = {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "local_shape": list(self.local_shape),
            "boxes": [box.json() for box in self.boxes],
            "frozen": self.frozen,
        }
        if self.into:
            entry["into"] = [target.json() for target in self.into]
        return entry


class ShardsPart(Part):
    """Tensors that describe themselves.

    Args:
        pairs: gives (name, tensor) anew at every call, always the same names in one order.
        describe: what this rank holds of one of them; asked once.
        is_frozen: whether one of them never changes; asked at every publish, to notice when the answer changes.
    """

    def __init__(
        self,
        pairs: "Callable[[], Iterable[Tuple[str, Any]]]",
        describe: "Callable[[str, Any], Shard]",
        is_frozen: "Callable[[str, Any], bool]",
        *,
        converts: bool,
    ) -> None:
        self.converts = converts
        self._pairs = pairs
        self._describe = describe
        self._is_frozen = is_frozen

    def sheet(self) -> "dict[str, Any]":
        return {"kind": "tensors", "tensors": [self._describe(name, tensor).json() for name, tensor in self._pairs()]}

    def locals(self) -> "list[LocalTensor]":
        return [
            local_of(name, local_tensor(tensor), frozen=self._is_frozen(name, tensor), converts=self.converts)
            for name, tensor in self._pairs()
        ]


def local_tensor(tensor: Any) -> Any:
    """This rank's shard of a DTensor; any other tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def frozen_predicate(frozen: Frozen) -> "Callable[[str, Any], bool]":
    """(name, tensor) -> whether the caller says that it never changes."""
    if frozen is None:
        return lambda name, tensor: False
    if callable(frozen):
        return lambda name, tensor: bool(frozen(name))
    if frozen == "requires_grad":
        return lambda name, tensor: not getattr(tensor, "requires_grad", True)
    if isinstance(frozen, str):
        raise BadDataError(f'frozen="{frozen}": give names, a function of a name, or "requires_grad"')
    names = frozenset(frozen)
    return lambda name, tensor: name in names


def whole_shard(name: str, tensor: Any, dtype: str, frozen: bool) -> Shard:
    """A tensor that this rank holds whole: a replica, if others do too."""
    shape = tuple(tensor.shape)
    zeros = (0,) * len(shape)
    return Shard(name, dtype, shape, shape, [Box(zeros, zeros, shape)], frozen)


def exported_dtype(name: str, tensor: Any, dtype: Any) -> str:
    """The HuggingFace dtype of ``tensor``: its own, or ``dtype`` for a float32 tensor when one is asked for."""
    own = safetensors_dtype(name, tensor.dtype)
    return safetensors_dtype(name, dtype) if dtype is not None and own == "F32" else own


def named_tensors(
    tensors: "Mapping[str, Any] | Iterable[Tuple[str, Any]] | Callable[[], Any]",
    *,
    dtype: Any = None,
    frozen: Frozen = None,
) -> Part:
    """Tensors under their HuggingFace names: DTensors of any placement, plain tensors (replicas), NumPy arrays.

    Args:
        tensors: a mapping, (name, tensor) pairs, or a function that gives such anew, asked at every publish.
        dtype: the HuggingFace dtype of float32 tensors, when it is not float32: ``torch.bfloat16`` rounds them.
        frozen: which tensors never change.
    """
    from lockstep._dtensors import shard_of

    is_frozen = frozen_predicate(frozen)
    held = None if callable(tensors) else list(named(tensors))

    def pairs() -> "Iterable[Tuple[str, Any]]":
        return named(tensors()) if held is None else held

    def describe(name: str, tensor: Any) -> Shard:
        return shard_of(name, tensor, exported_dtype(name, tensor, dtype), is_frozen(name, tensor))

    return ShardsPart(pairs, describe, is_frozen, converts=dtype is not None)
