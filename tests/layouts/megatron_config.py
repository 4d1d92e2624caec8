"""Megatron's transformer configuration for a HuggingFace one, set up to be built on CPU."""

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from topologies import Topology
from transformers import PretrainedConfig


def rope_theta(hf: PretrainedConfig) -> float:
    """The rotary base, wherever this version of transformers keeps it."""
    rope = getattr(hf, "rope_parameters", None) or {}
    return float(rope.get("rope_theta") or getattr(hf, "rope_theta", 10000.0))


def rotary_share(hf: PretrainedConfig) -> float:
    """The share of each head that is rotated."""
    rope = getattr(hf, "rope_parameters", None) or {}
    return float(rope.get("partial_rotary_factor") or getattr(hf, "partial_rotary_factor", None) or 1.0)


def transformer_config(
    hf: PretrainedConfig, topology: Topology, dtype: torch.dtype = torch.bfloat16
) -> TransformerConfig:
    """What Megatron-core builds a chunk of this model from."""
    arguments = {**_common(hf, dtype), **_parallel(topology), **_experts(hf)}
    if hf.model_type == "deepseek_v3":
        return MLATransformerConfig(**arguments, **_latent(hf))
    return TransformerConfig(
        **arguments,
        num_query_groups=hf.num_key_value_heads,
        kv_channels=getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads,
    )


def _common(hf: PretrainedConfig, dtype: torch.dtype) -> "dict[str, Any]":
    family = hf.model_type
    own_norms = family in ("qwen3", "qwen3_moe", "deepseek_v3")
    own_biases = family in ("qwen2", "qwen2_moe")
    return {
        "num_layers": hf.num_hidden_layers,
        "hidden_size": hf.hidden_size,
        "num_attention_heads": hf.num_attention_heads,
        "ffn_hidden_size": hf.intermediate_size,
        "layernorm_epsilon": hf.rms_norm_eps,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "normalization": "RMSNorm",
        "activation_func": F.silu,
        "gated_linear_unit": True,
        "add_bias_linear": False,
        "rotary_interleaved": family == "glm4",
        "add_qkv_bias": own_biases or bool(getattr(hf, "attention_bias", False)),
        "qk_layernorm": own_norms or bool(getattr(hf, "use_qk_norm", False)),
        "use_cpu_initialization": True,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype is torch.bfloat16,
    }


def _parallel(topology: Topology) -> "dict[str, Any]":
    return {
        "tensor_model_parallel_size": topology.tp,
        "pipeline_model_parallel_size": topology.pp,
        "virtual_pipeline_model_parallel_size": topology.vpp,
        "context_parallel_size": topology.cp,
        "expert_model_parallel_size": topology.ep,
        "expert_tensor_parallel_size": topology.etp,
        "num_layers_in_first_pipeline_stage": topology.first_layers,
        "num_layers_in_last_pipeline_stage": topology.last_layers,
        "pipeline_model_parallel_layout": topology.layout,
        "account_for_embedding_in_pipeline_split": topology.embedding_in_split,
        "account_for_loss_in_pipeline_split": topology.loss_in_split,
        "sequence_parallel": False,
    }


def _latent(hf: PretrainedConfig) -> "dict[str, Any]":
    return {
        "q_lora_rank": hf.q_lora_rank,
        "kv_lora_rank": hf.kv_lora_rank,
        "qk_head_dim": hf.qk_nope_head_dim,
        "qk_pos_emb_head_dim": hf.qk_rope_head_dim,
        "v_head_dim": hf.v_head_dim,
        "rope_type": "rope",
        "rotary_base": rope_theta(hf),
        "multi_latent_attention": True,
    }


def _experts(hf: PretrainedConfig) -> "dict[str, Any]":
    """The part of a mixture of experts; nothing for a dense model."""
    by_family = {
        "mixtral": _mixtral_experts,
        "qwen2_moe": _qwen_experts,
        "qwen3_moe": _qwen_experts,
        "deepseek_v3": _first_dense_experts,
        "glm4_moe": _first_dense_experts,
    }
    if hf.model_type not in by_family:
        return {}
    return {
        "moe_router_topk": hf.num_experts_per_tok,
        "moe_router_load_balancing_type": "none",
        "moe_token_dispatcher_type": "allgather",  # the other one makes a CUDA stream when built
        "moe_grouped_gemm": False,
        **by_family[hf.model_type](hf),
    }


def _mixtral_experts(hf: PretrainedConfig) -> "dict[str, Any]":
    return {"num_moe_experts": hf.num_local_experts, "moe_ffn_hidden_size": hf.intermediate_size}


def _qwen_experts(hf: PretrainedConfig) -> "dict[str, Any]":
    sparse = [
        int(layer not in hf.mlp_only_layers and (layer + 1) % hf.decoder_sparse_step == 0)
        for layer in range(hf.num_hidden_layers)
    ]
    arguments = {
        "num_moe_experts": hf.num_experts,
        "moe_ffn_hidden_size": hf.moe_intermediate_size,
        "moe_layer_freq": sparse,
    }
    if hf.model_type == "qwen2_moe":
        arguments["moe_shared_expert_intermediate_size"] = hf.shared_expert_intermediate_size
        arguments["moe_shared_expert_gate"] = True
    return arguments


def _first_dense_experts(hf: PretrainedConfig) -> "dict[str, Any]":
    return {
        "num_moe_experts": hf.n_routed_experts,
        "moe_ffn_hidden_size": hf.moe_intermediate_size,
        "moe_layer_freq": [int(layer >= hf.first_k_dense_replace) for layer in range(hf.num_hidden_layers)],
        "moe_shared_expert_intermediate_size": hf.moe_intermediate_size * hf.n_shared_experts,
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_dtype": "fp32",
        "mtp_num_layers": getattr(hf, "num_nextn_predict_layers", 0) or None,
    }
