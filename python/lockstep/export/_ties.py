"""Ties: one tensor under two names, such as an output layer that is also the input embedding."""

import warnings
from typing import Any, Iterable, Iterator, Tuple

from lockstep.core.errors import BadDataError, bad_tensor
from lockstep.core.tensors import NamedTensors, TensorMeta, meta_of, named


def without_ties(tensors: NamedTensors) -> "dict[str, Any]":
    """``tensors`` without the second and later names of a tensor that has several; of whole tensors, not of shards.

    That is what HuggingFace checkpoints of models with ``tie_word_embeddings`` hold: they leave ``lm_head.weight`` out,
    and the loader ties it again. Give the result to ``Publisher`` and to each ``publish`` alike.
    """
    pairs = named(tensors)
    tied = {name for name, _, _ in _ties(pairs)}
    return {name: tensor for name, tensor in pairs if name not in tied}


def warn_of_ties(entries: "Iterable[Any]") -> None:
    """For each tied one of (name, tensor) pairs, a warning with both names; descriptions are passed over."""
    pairs = [entry for entry in entries if not isinstance(entry, TensorMeta)]
    for name, first, tensor in _ties(pairs):
        warnings.warn(
            f'tensor "{name}" is "{first}" under another name, and its {meta_of(name, tensor).nbytes} bytes are '
            "published twice; checkpoints of models with tie_word_embeddings have it once: publish "
            f'lockstep.without_ties(tensors) to leave "{name}" out',
            stacklevel=3,
        )


def refuse_ties_that_came_apart(model: Any) -> None:
    """BadDataError for a module with two tensors that its transformers configuration ties. An engine that ties them would
    drop one, and compute with the other."""
    from lockstep.core.checkpoint import ties_that_came_apart

    for name, source in ties_that_came_apart(model):
        raise came_apart(name, source)


def came_apart(
    name: str,
    source: str,
    *,
    said: str = "the configuration ties it to",
    again: str = "call model.tie_weights(), before fully_shard",
) -> BadDataError:
    """That tensor ``name`` is tied to ``source``, by what ``said`` tells, and is another one. ``again``: how it is tied."""
    return bad_tensor(
        name, f'{said} "{source}", but the two came apart: {again}, or set config.tie_word_embeddings=False'
    )


def _ties(pairs: "list[Tuple[str, Any]]") -> "Iterator[Tuple[str, str, Any]]":
    """(name, first name, tensor) of every tensor that has the memory and the elements of one before it."""
    by_address: "dict[int, list[Tuple[str, Any]]]" = {}
    for name, tensor in pairs:
        address = _address(tensor)
        if address:
            by_address.setdefault(address, []).append((name, tensor))
    for sharing in by_address.values():
        if len(sharing) == 1:
            continue
        first_names: "dict[Any, str]" = {}
        for name, tensor in sharing:
            first = first_names.setdefault(_elements(name, tensor), name)
            if first != name:
                yield name, first, tensor


def _address(tensor: Any) -> int:
    """Of the tensor's memory; 0 where it has none here, or is sharded."""
    if hasattr(tensor, "to_local"):
        return 0
    try:
        if hasattr(tensor, "data_ptr"):
            return tensor.data_ptr() if tensor.numel() else 0
        return (tensor.__array_interface__.get("data") or (0,))[0] if tensor.size else 0
    except (AttributeError, NotImplementedError, RuntimeError):  # sparse, fake, or something that only has a shape
        return 0


def _elements(name: str, tensor: Any) -> Any:
    """What is equal for two tensors at one address when they are the same elements."""
    strides = tensor.stride() if hasattr(tensor, "stride") else tensor.__array_interface__.get("strides")
    meta = meta_of(name, tensor)
    return str(getattr(tensor, "device", "")), meta.dtype, meta.shape, strides and tuple(strides)
