"""named_tensors: tensors under their HuggingFace names as a part. For Publisher.from_tensors, and Importer."""

from typing import Any, Callable, Iterable, Iterator, Mapping, Tuple

from lockstep.core.tensors import meta_of, named
from lockstep.export._parts import Frozen, FrozenTensors, Part, Shard, ShardsPart, exported_dtype
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
        tensors: a mapping, (name, tensor) pairs, or a function that returns such. Each is read again at every publish, so a
            tensor may take another one's place under its name; dtype and shape stay. An iterator can be read only once:
            its tensors are kept, and are to be changed in place.
        dtype: the HuggingFace dtype of float32 tensors, when it is not float32: ``torch.bfloat16`` rounds them.
        frozen: as for ``lockstep.fsdp``.
    """
    never_changing = FrozenTensors(frozen)
    given: Any = named(tensors) if isinstance(tensors, Iterator) else tensors
    is_module = hasattr(given, "state_dict")  # which can be called, too: named() says what to give instead
    is_function = callable(given) and not is_module

    def pairs() -> "Iterable[Tuple[str, Any]]":
        return named(given() if is_function else given)

    if not is_function:
        warn_of_ties(pairs())

    def describe(name: str, tensor: Any) -> Shard:
        return shard_of(name, tensor, exported_dtype(name, tensor, dtype), never_changing.has(name, tensor))

    def check() -> None:
        refuse_names_in_memory(meta_of(name, tensor) for name, tensor in pairs())

    return ShardsPart(pairs, describe, never_changing, converts=dtype is not None, check=check)
