"""fsdp: a transformers model, whole or sharded by DTensors, as a part. For Publisher.from_fsdp and from_module, and Importer."""

import copy
import dataclasses
import re
from typing import Any, Callable, FrozenSet, Iterable, Tuple

from lockstep.core.tensors import CheckpointTensor, refuse_shards
from lockstep.export._adapter import refuse_adapters
from lockstep.export._parts import Frozen, FrozenTensors, Part, Shard, ShardsPart, exported_dtype
from lockstep.export._piece import shard_of
from lockstep.export._ties import refuse_ties_that_came_apart


def fsdp(model: Any, *, dtype: Any = None, frozen: Frozen = None) -> Part:
    """The weights of a transformers model whose parameters are DTensors (FSDP2, HSDP, with or without tensor
    parallelism) or plain tensors, under the names of its checkpoints.

    Args:
        model: the model, on every rank; wrappers (torch.compile, DDP, activation checkpointing) may stand around it and
            around parts of it.
        dtype: the checkpoint's dtype of float32 parameters (``torch.bfloat16``); buffers, and what transformers keeps
            in float32, stay as they are. None: every tensor in its own dtype.
        frozen: what never changes: names, a function of a name, or "requires_grad", each ``nn.Parameter`` that has it off.
            Buffers and detached tensors have it off, too, and may change, so it does not freeze them. It is refused where
            no tensor of any rank requires a gradient; one rank may have none, as a pipeline stage of frozen layers.

    Parameters that a forward pass left all-gathered are sharded again (``FSDPModule.reshard``) before they are read, so
    publish after the optimizer's step, not between a forward and its backward pass.

    A publisher of it raises BadDataError where the configuration ties two tensors that are no longer one.
    """
    from lockstep.core.checkpoint import check_module, checkpoint_tensors, sharded_parameters

    check_module(model)
    never_changing = FrozenTensors(frozen)
    refuse_adapters(model)
    is_kept = None if dtype is None else _kept_in_float32(model, dtype)
    into: "dict[str, list[CheckpointTensor]]" = {}

    def parameters() -> "Iterable[Tuple[str, Any]]":
        return sharded_parameters(model)

    def check() -> None:
        refuse_ties_that_came_apart(model)
        into.update(checkpoint_tensors(model, dict(parameters())))

    def describe(name: str, tensor: Any) -> Shard:
        import torch

        is_rounded = is_kept is not None and isinstance(tensor, torch.nn.Parameter) and not is_kept(name)
        exported = exported_dtype(name, tensor, dtype if is_rounded else None)
        shard = shard_of(name, tensor, exported, never_changing.has(name, tensor))
        return dataclasses.replace(shard, into=into[name])

    return ShardsPart(
        parameters,
        describe,
        never_changing,
        converts=dtype is not None,
        check=check,
        config=_config(model, dtype),
    )


def _config(model: Any, dtype: Any) -> "dict[str, Any] | None":
    """The config.json that ``save_pretrained`` would write beside what is published."""
    while hasattr(model, "module") and not hasattr(model, "config"):  # DDP
        model = model.module
    if not hasattr(getattr(model, "config", None), "to_dict"):
        return None
    config: "dict[str, Any]" = model.config.to_dict()
    if not config.get("architectures"):
        config["architectures"] = [type(model).__name__.removeprefix("FSDP")]
    published = dtype or getattr(model, "dtype", None)
    if published is not None:
        config["dtype"] = str(published).rpartition(".")[2]
        config.pop("torch_dtype", None)
    return config


def refuse_sharded(model: Any) -> None:
    """BadDataError for a model of which this process holds a part."""
    from lockstep.core.checkpoint import check_module, sharded_parameters

    check_module(model)
    for name, tensor in sharded_parameters(model):
        refuse_shards(name, tensor)


def _kept_in_float32(model: Any, dtype: Any) -> "Callable[[str], bool]":
    """Whether a parameter is one that transformers has in float32 although it loads the model in ``dtype``: its class
    makes it so, or says so by a glob."""
    patterns = {
        pattern.replace("*", ".*")
        for module in model.modules()
        for pattern in getattr(module, "_keep_in_fp32_modules_strict", None) or ()
    }
    named = re.compile("|".join(sorted(patterns)) or r"\Z.")
    made = _made_in_float32(model, dtype)
    return lambda name: name in made or named.search(name) is not None


def _made_in_float32(model: Any, dtype: Any) -> "FrozenSet[str]":
    """Found by making the model once more, without memory."""
    import torch

    from lockstep.core.checkpoint import unwrapped

    whole = unwrapped(model)
    kind: Any = next((kind for kind in type(whole).__mro__ if kind.__module__.startswith("transformers.models.")), None)
    if not hasattr(kind, "_from_config"):
        return frozenset()
    with torch.device("meta"):
        twin = kind._from_config(copy.deepcopy(whole.config), dtype=dtype)
    parameters = twin.named_parameters(remove_duplicate=False)
    return frozenset(name for name, parameter in parameters if parameter.dtype == torch.float32)
