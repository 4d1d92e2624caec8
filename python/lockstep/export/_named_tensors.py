"""The part of a model that is tensors under their HuggingFace names."""

from typing import Any, Callable, Iterable, Mapping, Tuple, cast

from lockstep.core.tensors import meta_of, named
from lockstep.export._parts import Frozen, Part, Shard, ShardsPart, exported_dtype, frozen_predicate
from lockstep.export._piece import shard_of
from lockstep.export._saved_tensors import refuse_names_in_memory
from lockstep.export._ties import warn_of_ties


def named_tensors(
    tensors: "Mapping[str, Any] | Iterable[Tuple[str, Any]] | Callable[[], Any]",
    *,
    dtype: Any = None,
    frozen: Frozen = None,
) -> Part:
    """Tensors under their HuggingFace names: DTensors of any placement, a ``Piece`` of a tensor, plain tensors
    (replicas), NumPy arrays.

    Args:
        tensors: a mapping, (name, tensor) pairs, or a function that returns such, called at every publish.
        dtype: the HuggingFace dtype of float32 tensors, when it is not float32: ``torch.bfloat16`` rounds them.
        frozen: which tensors never change.
    """
    is_frozen = frozen_predicate(frozen)
    is_module = hasattr(tensors, "state_dict")  # which can be called, too: named() says what to give instead
    function: Any = tensors if callable(tensors) and not is_module else None
    held = named(cast(Any, tensors)) if function is None else []
    warn_of_ties(held)

    def pairs() -> "Iterable[Tuple[str, Any]]":
        return held if function is None else named(function())

    def describe(name: str, tensor: Any) -> Shard:
        return shard_of(name, tensor, exported_dtype(name, tensor, dtype), is_frozen(name, tensor))

    return NamedTensorsPart(pairs, describe, is_frozen, converts=dtype is not None)


class NamedTensorsPart(ShardsPart):
    """Tensors with their HuggingFace names; made by ``named_tensors``."""

    def describe(self) -> "dict[str, Any]":
        refuse_names_in_memory(meta_of(name, tensor) for name, tensor in self._pairs())
        return super().describe()
