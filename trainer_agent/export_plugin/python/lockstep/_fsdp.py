"""The part of a model that is a transformers model under FSDP2, tensor parallelism by DTensor, or neither."""

import dataclasses
import re
from typing import Any, Iterator, Sequence, Tuple

from lockstep._errors import BadDataError
from lockstep._parts import Frozen, Into, Part, Shard, ShardsPart, exported_dtype, frozen_predicate

_WRAPPERS = re.compile(r"(?<![^.])(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module|module)\.")

# transformers stacks a layer's experts in one tensor; checkpoints have one tensor for each: the stacked name, and the
# checkpoint's names in the order of the stacked rows.
_GATED_EXPERTS = {
    "mlp.experts.gate_up_proj": ("mlp.experts.{e}.gate_proj.weight", "mlp.experts.{e}.up_proj.weight"),
    "mlp.experts.down_proj": ("mlp.experts.{e}.down_proj.weight",),
}
_EXPERT_NAMES = {
    "qwen2_moe": _GATED_EXPERTS,
    "qwen3_moe": _GATED_EXPERTS,
    "deepseek_v3": _GATED_EXPERTS,
    "glm4_moe": _GATED_EXPERTS,
    "mixtral": {
        "mlp.experts.gate_up_proj": ("block_sparse_moe.experts.{e}.w1.weight", "block_sparse_moe.experts.{e}.w3.weight"),
        "mlp.experts.down_proj": ("block_sparse_moe.experts.{e}.w2.weight",),
    },
}
_RENAMED = {"mixtral": (".mlp.gate.", ".block_sparse_moe.gate.")}


def fsdp(model: Any, *, dtype: Any = None, frozen: Frozen = None) -> Part:
    """The weights of a transformers model whose parameters are DTensors (FSDP2, HSDP, with or without tensor parallelism)
    or plain tensors, under the names of its checkpoints.

    Args:
        model: the model, on every rank; wrappers of torch.compile and of activation checkpointing are fine.
        dtype: the checkpoint's dtype of float32 parameters (``torch.bfloat16``); buffers, and what transformers keeps in
            float32, stay as they are. None: every tensor in its own dtype.
        frozen: which parameters never change.

    Unsharded parameters, left by a forward pass, are sharded again (``FSDPModule.reshard``) before they are read.
    """
    is_frozen = frozen_predicate(frozen)
    model_type = getattr(getattr(model, "config", None), "model_type", "")

    def describe(name: str, tensor: Any) -> Shard:
        from lockstep._dtensors import shard_of

        kept = dtype if _may_be_rounded(model, name, tensor) else None
        shard = shard_of(name, tensor, exported_dtype(name, tensor, kept), is_frozen(name, tensor))
        return _as_in_checkpoints(shard, model_type)

    return ShardsPart(lambda: sharded_parameters(model), describe, converts=dtype is not None)


def sharded_parameters(model: Any) -> "Iterator[Tuple[str, Any]]":
    """(name without wrappers, tensor) of all parameters, sharded, and of the buffers that are saved; tied ones once."""
    from lockstep._dtensors import reshard_fsdp_modules

    reshard_fsdp_modules(model)
    saved = set(model.state_dict(keep_vars=True))
    for name, tensor in model.named_parameters():
        if "_flat_param" in name:
            raise BadDataError(f'parameter "{name}" is flattened by FSDP1; use fully_shard (FSDP2)')
        yield _WRAPPERS.sub("", name), tensor
    for name, tensor in model.named_buffers():
        if name in saved:
            yield _WRAPPERS.sub("", name), tensor


def _may_be_rounded(model: Any, name: str, tensor: Any) -> bool:
    import torch

    kept: "set[str]" = set()
    for attribute in ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict"):
        kept.update(getattr(model, attribute, None) or ())
    return isinstance(tensor, torch.nn.Parameter) and not kept & set(name.split("."))


def _as_in_checkpoints(shard: Shard, model_type: str) -> Shard:
    old, new = _RENAMED.get(model_type, ("", ""))
    if old and old in shard.name:
        return dataclasses.replace(shard, into=[Into(shard.name.replace(old, new), shard.shape, (0,) * len(shard.shape))])
    if ".mlp.experts." not in shard.name or len(shard.shape) != 3:
        return shard
    for stacked, single in _EXPERT_NAMES.get(model_type, {}).items():
        if shard.name.endswith(stacked):
            prefix = shard.name[: -len(stacked)]
            return dataclasses.replace(shard, into=_experts(shard.shape, [prefix + name for name in single]))
    raise BadDataError(f'parameter "{shard.name}": no rule says how checkpoints of "{model_type}" name its experts')


def _experts(stacked: "Tuple[int, ...]", names: "Sequence[str]") -> "list[Into]":
    experts, rows, columns = stacked
    each = rows // len(names)
    return [
        Into(name.format(e=expert), (each, columns), (expert, part * each, 0))
        for expert in range(experts)
        for part, name in enumerate(names)
    ]
