"""Parts: what a rank holds (its description, export_plugin/plan/FORMAT.md), and where the memory is. For _sharded.py and Importer.

A model is one part or several: parameters of Megatron-core, DTensors of FSDP2, plain tensors, an adapter. Every rank
gives the same parts in the same order.
"""

import abc
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Sequence, Tuple, Union

from lockstep.core.dtypes import safetensors_dtype
from lockstep.core.errors import BadDataError
from lockstep.core.tensors import CheckpointTensor, LocalTensor, local_of

DESCRIPTION_FORMAT = 1

# Which tensors never change: their names, a predicate on names, or "requires_grad": parameters that have it off.
Frozen = Union[None, str, Iterable[str], Callable[[str], bool]]


class FrozenTensors:
    """Which tensors never change, by the caller's ``frozen``.

    By "requires_grad" an ``nn.Parameter`` alone is frozen. ``requires_grad`` is off for every buffer, detached tensor and
    array, too, and these may change.

    Attributes:
        names: as the caller gave them: every one is some rank's.
        by_gradient: the caller gave "requires_grad".
    """

    def __init__(self, frozen: Frozen) -> None:
        self.by_gradient = frozen == "requires_grad"
        if isinstance(frozen, str) and not self.by_gradient:
            raise BadDataError(f'frozen="{frozen}": give names, a function of a name, or "requires_grad"')
        self._function = frozen if callable(frozen) else None
        self.names = frozenset(() if frozen is None or callable(frozen) or self.by_gradient else frozen)

    def has(self, name: str, tensor: Any) -> bool:
        if self._function is not None:
            return bool(self._function(name))
        return name in self.names or (self.by_gradient and _is_parameter_without_gradient(tensor))


def _is_parameter_without_gradient(tensor: Any) -> bool:
    if getattr(tensor, "requires_grad", True):
        return False
    import torch  # which the tensor is of

    return isinstance(tensor, torch.nn.Parameter)


class Part(abc.ABC):
    """One part of a model, as this rank has it. ``converts``: float32 tensors may be rounded to bfloat16 on the way.
    ``config``: the model's config.json, in one of the forms that ``config_json`` takes; None: the part does not know it."""

    converts: bool = False
    config: Any = None
    frozen = FrozenTensors(None)

    @abc.abstractmethod
    def describe(self) -> "dict[str, Any]":
        """The part's JSON."""

    def open(self, group: Any, on_agent_host: bool) -> None:  # noqa: B027  most parts have nothing to do
        """Called once, before all others, on every rank of the group together."""

    def prepare(self) -> None:  # noqa: B027  most parts have nothing to do
        """Makes the tensors whole before they are read. Called at the start of every publish on every rank, so it may
        communicate as the trainer does."""

    @abc.abstractmethod
    def locals(self) -> "list[LocalTensor]":
        """This rank's tensors in the description's order. Called at every publish: memory may move, shapes may not."""

    def trains(self) -> bool:
        """Whether a tensor of this rank requires a gradient. Called once."""
        return False

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
class Shard:
    """What this rank holds of one tensor.

    ``name``, ``dtype`` and ``shape`` are those of the whole tensor as HuggingFace has it; ``boxes`` say which blocks of
    it the local tensor of ``local_shape`` holds (none: this rank holds nothing of it). ``into``: the HuggingFace
    tensors that are made of it, unless it is the one of its name.
    """

    name: str
    dtype: str
    shape: Tuple[int, ...]
    local_shape: Tuple[int, ...]
    boxes: "Sequence[Box]"
    frozen: bool = False
    into: "Sequence[CheckpointTensor]" = ()

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
            entry["into"] = [
                {
                    "name": made.name,
                    "shape": list(made.shape),
                    "from": list(made.start),
                    **({"at": list(made.at), "size": list(made.size)} if made.at else {}),
                    **({"as": list(made.view)} if made.at and made.view != made.shape else {}),
                }
                for made in self.into
            ]
        return entry


class ShardsPart(Part):
    """Tensors that describe themselves, as most functions that make parts return them.

    Args:
        pairs: returns (name, tensor), always the same names in one order; called at every publish.
        describe: what this rank holds of one of them; called once.
        frozen: which of them never change; asked at every publish, to notice when the answer changes.
        check: called before they are described; raises where they are not what they should be.
        attachments, config: as of a Part.
    """

    def __init__(
        self,
        pairs: "Callable[[], Iterable[Tuple[str, Any]]]",
        describe: "Callable[[str, Any], Shard]",
        frozen: FrozenTensors,
        *,
        converts: bool,
        check: "Callable[[], None]" = lambda: None,
        attachments: "Callable[[], dict[str, str]]" = dict,
        config: Any = None,
    ) -> None:
        self.converts = converts
        self.config = config
        self._check = check
        self._attachments = attachments
        self._pairs = pairs
        self._describe = describe
        self.frozen = frozen

    def describe(self) -> "dict[str, Any]":
        self._check()
        return {"kind": "tensors", "tensors": [self._describe(name, tensor).json() for name, tensor in self._pairs()]}

    def trains(self) -> bool:
        return any_requires_gradient(self._pairs())

    def locals(self) -> "list[LocalTensor]":
        return [
            local_of(name, local_tensor(tensor), frozen=self._is_frozen(name, tensor), converts=self.converts)
            for name, tensor in self._pairs()
        ]

    def attachments(self) -> "dict[str, str]":
        return self._attachments()

    def _is_frozen(self, name: str, tensor: Any) -> bool:
        return self.frozen.has(name, tensor)


def local_tensor(tensor: Any) -> Any:
    """This rank's shard of a DTensor; any other tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def any_requires_gradient(pairs: "Iterable[Tuple[str, Any]]") -> bool:
    return any(getattr(tensor, "requires_grad", False) for _, tensor in pairs)


def whole_shard(name: str, tensor: Any, dtype: str, frozen: bool) -> Shard:
    """A tensor that this rank holds whole: a replica, if others do too."""
    shape = tuple(tensor.shape)
    zeros = (0,) * len(shape)
    return Shard(name, dtype, shape, shape, [Box(zeros, zeros, shape)], frozen)


def exported_dtype(name: str, tensor: Any, dtype: Any) -> str:
    """The HuggingFace dtype of ``tensor``: its own, or ``dtype`` for a float32 tensor when one is asked for."""
    own = safetensors_dtype(name, tensor.dtype)
    return safetensors_dtype(name, dtype) if dtype is not None and own == "F32" else own
