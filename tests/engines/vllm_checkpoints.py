"""Tiny checkpoints that vLLM can load, also as eight ranks."""

from pathlib import Path
from typing import Any

from hf_models import MODELS, tiny_config, write_checkpoint
from transformers import PretrainedConfig

# Key/value heads are shared by four of eight ranks, and there is an expert for each, as vLLM wants. Heads have a size
# that it has kernels for.
_HEADS: "dict[str, Any]" = {"num_attention_heads": 8, "head_dim": 16}
_HIDDEN: "dict[str, Any]" = {"num_attention_heads": 8, "hidden_size": 128}
_LATENT: "dict[str, Any]" = {
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "n_routed_experts": 8,
    # As published configurations have it: without, vLLM's routers have no bias, and SGLang builds nothing.
    **{"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1},
}
OVERRIDES: "dict[str, dict[str, Any]]" = {
    **dict.fromkeys(MODELS, _HEADS),
    "qwen2": _HIDDEN,
    "qwen3_moe": {**_HEADS, "num_experts": 8},
    "qwen2_moe": {**_HIDDEN, "num_experts": 8},
    "mixtral": {**_HEADS, "num_local_experts": 8},
    "deepseek_v3": _LATENT,
    "moonlight": _LATENT,
    "glm4_moe": {**_HEADS, "n_routed_experts": 8},
}


class VllmCheckpoints:
    """Checkpoints below ``directory``, each written when first asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, model: str, **overrides: Any) -> "tuple[Path, PretrainedConfig]":
        """A checkpoint's directory and configuration."""
        config = tiny_config(model, **{**OVERRIDES[model], **overrides})
        path = self._directory / "-".join([model, *(f"{key}={value}" for key, value in overrides.items())])
        if not path.exists():
            write_checkpoint(path, config, seed=3)
        return path, config
