"""Tiny HuggingFace models of every family: their configurations, and checkpoints as transformers writes them."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tiny_options import COMMON, EXPERTS, FIRST_DENSE, LATENT, VOCABULARY
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.utils import logging

logging.disable_progress_bar()

_MTP = {"num_nextn_predict_layers": 1}

# model -> (transformers' model_type, what differs). A model is a family, or a variant of one.
MODELS: "dict[str, tuple[str, dict[str, Any]]]" = {
    "llama": ("llama", {"head_dim": 16}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3_moe": ("qwen3_moe", {"head_dim": 32, "num_experts": 4, **EXPERTS}),
    "qwen2_moe": ("qwen2_moe", {"num_experts": 4, "shared_expert_intermediate_size": 80, **EXPERTS}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "deepseek_v3": ("deepseek_v3", {**LATENT, **_MTP}),
    "moonlight": ("deepseek_v3", {**LATENT, "q_lora_rank": None, "num_nextn_predict_layers": 0}),
    "glm4": ("glm4", {"head_dim": 16, "attention_bias": True}),
    "glm4_moe": ("glm4_moe", {"head_dim": 16, "attention_bias": True, "use_qk_norm": True, **FIRST_DENSE, **_MTP}),
}
MIXTURES = ("qwen3_moe", "qwen2_moe", "mixtral", "deepseek_v3", "moonlight", "glm4_moe")


def has_mtp(model: str) -> bool:
    """Whether the model has layers for multi-token prediction."""
    return MODELS[model][1].get("num_nextn_predict_layers", 0) > 0


def tiny_config(model: str, **overrides: Any) -> PretrainedConfig:
    """A small HuggingFace configuration."""
    model_type, special = MODELS[model]
    return AutoConfig.for_model(model_type, **{**COMMON, **special, **overrides})


def write_checkpoint(directory: Path, config: PretrainedConfig, seed: int) -> None:
    """A bf16 checkpoint of random weights: what transformers saves, and MTP layers as published models have them."""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    _keep_router_biases_exact(model)
    _fill(model, seed)
    model.save_pretrained(directory)
    if getattr(config, "num_nextn_predict_layers", 0):
        file = directory / "model.safetensors"
        tensors = load_file(file)
        save_file({**tensors, **_mtp_tensors(config, tensors, seed)}, file, metadata={"format": "pt"})


def _keep_router_biases_exact(model: torch.nn.Module) -> None:
    """In float32, as published checkpoints of every family have them; transformers rounds those of some."""
    for module in model.modules():
        if "e_score_correction_bias" in module._buffers:
            module._buffers["e_score_correction_bias"] = module._buffers["e_score_correction_bias"].float()


def _fill(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    biases = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")]
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *biases]:
            noise = torch.randn(tensor.shape, generator=generator) * 0.05
            tensor.copy_(noise + 1 if "norm" in name else noise)


def _mtp_tensors(config: PretrainedConfig, saved: "dict[str, torch.Tensor]", seed: int) -> "dict[str, torch.Tensor]":
    """One layer after the last: shaped like it, with a projection and norms of its own, and copies of two tensors."""
    generator = torch.Generator().manual_seed(seed + 1000)
    hidden, layers = config.hidden_size, config.num_hidden_layers
    last, own = f"model.layers.{layers - 1}.", f"model.layers.{layers}."

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * 0.05).to(torch.bfloat16)

    tensors = {
        name.replace(last, own): random(*tensor.shape).to(tensor.dtype)
        for name, tensor in saved.items()
        if name.startswith(last)
    }
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"{own}{norm}.weight"] = random(hidden)
    tensors[f"{own}eh_proj.weight"] = random(hidden, 2 * hidden)
    tensors[f"{own}embed_tokens.weight"] = saved["model.embed_tokens.weight"].clone()
    tensors[f"{own}shared_head.head.weight"] = saved["lm_head.weight"].clone()
    return tensors


def published_tensors(directory: Path) -> "dict[str, torch.Tensor]":
    """A checkpoint's tensors, without the copies of embedding and head in MTP layers: those are emitted once."""
    copies = (".embed_tokens.weight", ".shared_head.head.weight")
    tensors = load_file(directory / "model.safetensors")
    return {name: t for name, t in tensors.items() if not (name.startswith("model.layers.") and name.endswith(copies))}


def logits(directory: Path) -> torch.Tensor:
    """What transformers computes from a checkpoint directory, in float32 from its bf16 weights, [1, 12, vocabulary]."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    tokens = (torch.arange(12) * 7 % VOCABULARY)[None]
    with torch.no_grad():
        return model(tokens).logits
