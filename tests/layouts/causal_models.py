"""Every causal model of the installed transformers, made small: its own default configuration with small numbers."""

import re
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

logging.disable_progress_bar()
logging.set_verbosity_error()

MODEL_TYPES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
LAYERS = 4

# Attributes of configurations, by regular expression -> the largest number that they keep.
_LIMITS = {
    r"(num|n)_(hidden_)?layers?|(encoder|decoder)_layers|num_(encoder|decoder)_layers|depth": LAYERS,
    r".*vocab_size.*|.*max_position_embeddings|n_positions|n_ctx": 64,
    r".*(_token_id|_token_index|_idx)|n_group|topk_group|first_k_dense_replace": 1,
    r"hidden_size|d_model|n_embd|dim|emb_dim|embed_dim|embedding_size|attention_hidden_size|lru_width": 32,
    r"(num_)?(attention_)?heads|num_attention_heads|n_heads?|(encoder|decoder)_attention_heads": 4,
    r"num_key_value_heads|num_kv_heads|.*experts_per_tok(en)?|.*top_?k|moe_k": 2,
    r".*head_dim|d_head|d_kv|dim_head|.*lora_rank|hidden_size_per_layer_input": 8,
    r".*(intermediate_size|ffn_dim|ffn_hidden_size)|n_inner|d_ff|dim_ff|dff|d_inner": 48,
    r"num_(local_)?experts|n_routed_experts|moe_num_experts|moe_layer_num_experts": 4,
}

_INDEXER = {f"indexer_{name}": value for name, value in [("n_heads", 4), ("kv_heads", 1), ("head_dim", 8)]}
_INDEXER |= {"indexer_budget": 8, "indexer_compress_ratio": 4}

# What a model asks for besides: "part.attribute" -> value.
_OWN: "dict[str, dict[str, Any]]" = {
    "bamba": {"mamba_n_heads": 4, "mamba_d_head": 16},
    "blt": {"encoder_hash_byte_group_vocab": 64},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "dbrx": {"attn_config.rope_theta": 1e4},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gemma4_unified_assistant": {"text_config.num_kv_shared_layers": 0},
    "granitemoehybrid": {"mamba_n_heads": 4, "mamba_d_head": 16},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * (LAYERS // 2)},
    "mamba2": {"num_heads": 4, "head_dim": 16},
    "ministral": {"head_dim": 8},
    "nemotron": {"num_key_value_heads": 2},
    "qwen4_exp": {f"text_config.{name}": value for name, value in _INDEXER.items()},
    "qwen4_exp_text": _INDEXER,
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": [8, 24]},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid"] * (LAYERS // 2)},
}


def small_config(model_type: str) -> PretrainedConfig:
    """The default configuration of a model with small numbers, and a few layers of all kinds that it has."""
    config = CONFIG_MAPPING[model_type]()
    _shrink(config)
    for path, value in _OWN.get(model_type, {}).items():
        part, _, attribute = path.rpartition(".")
        setattr(getattr(config, part) if part else config, attribute, value)
    return config


def small_model(model_type: str) -> Any:
    """The model itself, of random weights, in bfloat16."""
    torch.manual_seed(11)
    return AutoModelForCausalLM.from_config(small_config(model_type), dtype=torch.bfloat16)


def _shrink(config: PretrainedConfig) -> None:
    values = dict(vars(config))
    layers = values.get("num_hidden_layers") or values.get("num_layers") or 0
    by_layer = {key: value for key, value in values.items() if isinstance(value, list) and len(value) == layers > 0}
    kept = _layers_of_every_kind(list(zip(*by_layer.values())))
    for key, value in values.items():
        if isinstance(value, PretrainedConfig):
            _shrink(value)
        elif key in by_layer:
            setattr(config, key, [value[layer] for layer in kept])
        elif type(value) is int:
            setattr(config, key, min([value, *(limit for name, limit in _LIMITS.items() if re.fullmatch(name, key))]))


def _layers_of_every_kind(kinds: "list[Any]") -> "list[int]":
    """Which layers to keep, as many as LAYERS: the first ones, and with them the first of each kind."""
    first = {str(kind): layer for layer, kind in reversed(list(enumerate(kinds)))}
    wanted = [*sorted(first.values()), *(layer for layer in range(len(kinds)) if layer not in first.values())]
    return sorted(wanted[:LAYERS])
