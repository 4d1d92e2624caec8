"""A second witness of whole tensors: Megatron's own distributed checkpointing knows where each shard belongs.

`sharded_state_dict()` gives, for every shard of every rank, the whole tensor's name and shape and the shard's offset in
it. Whole tensors are put together from that; what is left to HuggingFace's names is plain slicing by head and half.
"""

from typing import NamedTuple

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron_models import megatron_on_cpu
from ranks import Rank
from transformers import PretrainedConfig


class Shard(NamedTuple):
    """A rank's block of a whole Megatron tensor; leading axes of size 1 (a layer, an expert) are kept."""

    key: str
    shape: "tuple[int, ...]"
    offset: "tuple[int, ...]"
    block: torch.Tensor


def shards(rank: Rank) -> "list[Shard]":
    """What this rank holds, by Megatron."""
    found = []
    for chunk in rank.chunks:
        with megatron_on_cpu():
            values = list(nested_values(chunk.sharded_state_dict()))
        for value in values:
            found += [_shard(part) for part in _sharded_tensors(value)]
    return found


def _sharded_tensors(value) -> "list[ShardedTensor]":
    if isinstance(value, ShardedTensorFactory):
        return [part for part in nested_values(value.build()) if isinstance(part, ShardedTensor)]
    return [value] if isinstance(value, ShardedTensor) else []


def _shard(part: ShardedTensor) -> Shard:
    block = part.data.detach()
    leading = (1,) * (len(part.global_shape) - block.dim())
    return Shard(part.key, tuple(part.global_shape), tuple(part.global_offset), block.reshape(leading + block.shape))


def whole_tensors(of_ranks: "list[list[Shard]]") -> "dict[str, torch.Tensor]":
    """The whole tensors, by Megatron's names; every element comes from some rank, and replicas agree."""
    whole: "dict[str, torch.Tensor]" = {}
    filled: "dict[str, torch.Tensor]" = {}
    for shard in (shard for of_rank in of_ranks for shard in of_rank):
        tensor = whole.setdefault(shard.key, torch.zeros(shard.shape, dtype=shard.block.dtype))
        there = filled.setdefault(shard.key, torch.zeros(shard.shape, dtype=torch.bool))
        region = tuple(slice(start, start + size) for start, size in zip(shard.offset, shard.block.shape))
        assert not there[region].any() or torch.equal(tensor[region], shard.block), f"{shard.key}: replicas differ"
        tensor[region] = shard.block
        there[region] = True
    for key, there in filled.items():
        assert there.all(), f"{key}: no rank holds {int((~there).sum())} of its elements"
    return whole


def huggingface_tensors(whole: "dict[str, torch.Tensor]", hf: PretrainedConfig) -> "dict[str, torch.Tensor]":
    """The HuggingFace tensors, sliced from Megatron's whole ones."""
    tensors = {
        "model.embed_tokens.weight": whole["embedding.word_embeddings.weight"][: hf.vocab_size],
        "lm_head.weight": whole["output_layer.weight"][: hf.vocab_size],
        "model.norm.weight": whole["decoder.final_layernorm.weight"],
    }
    for layer in range(hf.num_hidden_layers):
        tensors.update(_of_layer(whole, hf, layer))
    return tensors


def _of_layer(whole: "dict[str, torch.Tensor]", hf: PretrainedConfig, layer: int) -> "dict[str, torch.Tensor]":
    """What the layer has of everything that a layer can have."""
    prefix = f"model.layers.{layer}."
    of = _parameters_of_layer(whole, layer)
    tensors = {
        f"{prefix}input_layernorm.weight": of["self_attention.linear_qkv.layer_norm_weight"],
        f"{prefix}post_attention_layernorm.weight": of["mlp.linear_fc1.layer_norm_weight"],
        f"{prefix}self_attn.o_proj.weight": of["self_attention.linear_proj.weight"],
    }
    for kind in ("weight", "bias"):
        if f"self_attention.linear_qkv.{kind}" in of:
            for part, rows in zip("qkv", _by_head(of[f"self_attention.linear_qkv.{kind}"], hf)):
                tensors[f"{prefix}self_attn.{part}_proj.{kind}"] = rows
    for norm, name in _MORE_NORMS.items():
        if norm in of:
            tensors[prefix + name] = of[norm]
    if "mlp.router.weight" in of:
        tensors.update(_mixture(prefix + "mlp.", of, hf))
    elif hf.model_type == "glm4":
        tensors[f"{prefix}mlp.gate_up_proj.weight"] = of["mlp.linear_fc1.weight"]
        tensors[f"{prefix}mlp.down_proj.weight"] = of["mlp.linear_fc2.weight"]
    else:
        tensors.update(_mlp(f"{prefix}mlp.", of["mlp.linear_fc1.weight"], of["mlp.linear_fc2.weight"]))
    return tensors


_MORE_NORMS = {
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    "post_self_attn_layernorm.weight": "post_self_attn_layernorm.weight",
    "post_mlp_layernorm.weight": "post_mlp_layernorm.weight",
}


def _parameters_of_layer(whole: "dict[str, torch.Tensor]", layer: int) -> "dict[str, torch.Tensor]":
    """Layers of one kind are one tensor with a leading axis; layers of several kinds have their own names."""
    own, all_layers = f"decoder.layers.{layer}.", "decoder.layers."
    if any(key.startswith(own) for key in whole):
        return {key.removeprefix(own): tensor for key, tensor in whole.items() if key.startswith(own)}
    return {key.removeprefix(all_layers): tensor[layer] for key, tensor in whole.items() if key.startswith(all_layers)}


def _mixture(prefix: str, of: "dict[str, torch.Tensor]", hf: PretrainedConfig) -> "dict[str, torch.Tensor]":
    tensors = {f"{prefix}gate.weight": of["mlp.router.weight"]}
    if "mlp.shared_experts.linear_fc1.weight" in of:
        shared = "shared_expert" if "mlp.shared_experts.gate_weight" in of else "shared_experts"
        both = (of[f"mlp.shared_experts.linear_fc{i}.weight"] for i in (1, 2))
        tensors.update(_mlp(f"{prefix}{shared}.", *both))
    if "mlp.shared_experts.gate_weight" in of:
        tensors[f"{prefix}shared_expert_gate.weight"] = of["mlp.shared_experts.gate_weight"]
    experts = [of[f"mlp.experts.experts.linear_fc{i}.weight"] for i in (1, 2)]
    for expert in range(hf.num_experts):
        tensors.update(_mlp(f"{prefix}experts.{expert}.", *(weight[expert] for weight in experts)))
    return tensors


def _by_head(qkv: torch.Tensor, hf: PretrainedConfig) -> "list[torch.Tensor]":
    """Queries, keys and values: each group of heads has its queries, then a key and a value head."""
    groups, queries = hf.num_key_value_heads, hf.num_attention_heads // hf.num_key_value_heads
    by_group = qkv.reshape(groups, queries + 2, -1, *qkv.shape[1:])
    parts = by_group[:, :queries], by_group[:, queries : queries + 1], by_group[:, queries + 1 :]
    return [part.reshape(-1, *qkv.shape[1:]) for part in parts]


def _mlp(prefix: str, fc1: torch.Tensor, fc2: torch.Tensor) -> "dict[str, torch.Tensor]":
    gate, up = fc1.chunk(2)
    return {f"{prefix}gate_proj.weight": gate, f"{prefix}up_proj.weight": up, f"{prefix}down_proj.weight": fc2}
