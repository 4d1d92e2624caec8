"""Toy engines: what their ranks hold of a checkpoint of llama or glm4_moe, by slicing and concatenating with PyTorch, as engines cut, fuse and
pad it. engine_ranks.py follows with them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lockstep.engine._processing import Processing
from lockstep.engine._recorded import Recorded
from lockstep.engine._recorder import TensorForm

Tensors = "dict[str, torch.Tensor]"

VOCABULARY_PADDING = 64


@dataclass(frozen=True)
class Place:
    """A rank of an engine: (size, rank) of its groups."""

    tensor: "tuple[int, int]" = (1, 0)
    expert: "tuple[int, int]" = (1, 0)
    expert_tensor: "tuple[int, int]" = (1, 0)


def places(tensor_parallel: int, expert_parallel: int = 1) -> "list[Place]":
    """Every rank's place; experts are spread first, and cut over the ranks that are left."""
    within = tensor_parallel // expert_parallel
    return [
        Place((tensor_parallel, rank), (expert_parallel, rank // within), (within, rank % within))
        for rank in range(tensor_parallel)
    ]


def engine_tensors(config: object, hf: Tensors, place: Place) -> Tensors:
    """Name -> what a rank holds. ``hf``: a checkpoint's tensors, with its configuration."""
    return _Engine(config, hf, place).tensors()


def made_of(module: torch.nn.Module, config: object, hf: Tensors, place: Place) -> "dict[str, Any]":
    """The slices and padding of a module of these tensors, as Follower takes them."""
    held = dict(module.named_parameters())

    def load(weights: "Iterator[tuple[str, torch.Tensor]]") -> None:
        for name, tensor in engine_tensors(config, dict(weights), place).items():
            held[name].copy_(tensor)

    recorded = Recorded(module, module, load, Processing(module))
    recorded.take("a toy's", [TensorForm(name, own.dtype, tuple(own.shape)) for name, own in hf.items()])
    parameters = recorded.place().parameters
    return {
        "slices": {own.name: own.slices for own in parameters},
        "padding": {own.name: own.padding for own in parameters},
    }


class _Engine:
    def __init__(self, config: object, hf: Tensors, place: Place) -> None:
        self.config, self.hf, self.place = config, hf, place

    def tensors(self) -> Tensors:
        out = {"model.embed_tokens.weight": self.vocabulary(self.hf["model.embed_tokens.weight"])}
        for layer in range(self.config.num_hidden_layers):
            out.update(self.layer(f"model.layers.{layer}."))
        out["model.norm.weight"] = self.hf["model.norm.weight"]
        if "lm_head.weight" in self.hf:
            out["lm_head.weight"] = self.vocabulary(self.hf["lm_head.weight"])
        return out

    def layer(self, prefix: str) -> Tensors:
        out = self.attention(prefix)
        for norm in ("input", "post_attention"):
            out[f"{prefix}{norm}_layernorm.weight"] = self.hf[f"{prefix}{norm}_layernorm.weight"]
        if f"{prefix}mlp.gate.weight" in self.hf:
            return {**out, **self.mixture(f"{prefix}mlp.")}
        return {**out, **self.mlp(prefix + "mlp.", self.place.tensor)}

    # --- attention

    def attention(self, prefix: str) -> Tensors:
        attention = prefix + "self_attn."
        out = {}
        for kind in ("weight", "bias"):
            if f"{attention}q_proj.{kind}" in self.hf:
                parts = [self.heads(self.hf[f"{attention}{name}_proj.{kind}"], name) for name in "qkv"]
                out[f"{attention}qkv_proj.{kind}"] = torch.cat(parts)
        for norm in ("q_norm", "k_norm"):
            if f"{attention}{norm}.weight" in self.hf:
                out[f"{attention}{norm}.weight"] = self.hf[f"{attention}{norm}.weight"]
        out.update(self.row_linear(f"{attention}o_proj", self.place.tensor))
        return out

    def heads(self, tensor: torch.Tensor, kind: str) -> torch.Tensor:
        """A rank's query heads, or its key/value heads, which several ranks share when there are too few."""
        size, rank = self.place.tensor
        heads = self.config.num_attention_heads if kind == "q" else self.config.num_key_value_heads
        if size > heads:
            return _rows(tensor, (heads, rank // (size // heads)))
        return _rows(tensor, (size, rank))

    # --- MLP

    def mlp(self, prefix: str, share: "tuple[int, int]") -> Tensors:
        out = self.row_linear(f"{prefix}down_proj", share)
        for kind in ("weight", "bias"):
            if f"{prefix}gate_proj.{kind}" in self.hf:
                gate, up = (self.hf[f"{prefix}{name}_proj.{kind}"] for name in ("gate", "up"))
                out[f"{prefix}gate_up_proj.{kind}"] = torch.cat([_rows(gate, share), _rows(up, share)])
        return out

    def row_linear(self, name: str, share: "tuple[int, int]") -> Tensors:
        """A linear layer that is cut along its input; its bias, added once, is whole."""
        out = {f"{name}.weight": _columns(self.hf[f"{name}.weight"], share)}
        if f"{name}.bias" in self.hf:
            out[f"{name}.bias"] = self.hf[f"{name}.bias"]
        return out

    def mixture(self, prefix: str) -> Tensors:
        biases = f"{prefix}gate.e_score_correction_bias"
        # The router is in float32.
        out = {f"{prefix}gate.weight": self.hf[f"{prefix}gate.weight"].float(), biases: self.hf[biases]}
        w13, w2 = [], []
        for expert in self.experts(prefix):
            of = f"{prefix}experts.{expert}."
            both = (self.hf[f"{of}{name}_proj.weight"] for name in ("gate", "up"))
            w13.append(torch.cat([_rows(tensor, self.place.expert_tensor) for tensor in both]))
            w2.append(_columns(self.hf[f"{of}down_proj.weight"], self.place.expert_tensor))
        out[f"{prefix}experts.w13_weight"], out[f"{prefix}experts.w2_weight"] = torch.stack(w13), torch.stack(w2)
        return {**out, **self.mlp(f"{prefix}shared_experts.", self.place.tensor)}

    def experts(self, prefix: str) -> "list[int]":
        """A rank's share of whole experts; the first ranks have those that are over."""
        count = sum(name.startswith(f"{prefix}experts.") and name.endswith(".gate_proj.weight") for name in self.hf)
        size, rank = self.place.expert
        return torch.arange(count).tensor_split(size)[rank].tolist()

    # --- vocabulary

    def vocabulary(self, tensor: torch.Tensor) -> torch.Tensor:
        """A rank's rows of the padded table; padding is zero."""
        rows = tensor.shape[0]
        padded = tensor.new_zeros(-(-rows // VOCABULARY_PADDING) * VOCABULARY_PADDING, tensor.shape[1])
        padded[:rows] = tensor
        return _rows(padded, self.place.tensor)


def _rows(tensor: torch.Tensor, share: "tuple[int, int]") -> torch.Tensor:
    return tensor.chunk(share[0])[share[1]]


def _columns(tensor: torch.Tensor, share: "tuple[int, int]") -> torch.Tensor:
    return tensor.chunk(share[0], dim=1)[share[1]]
