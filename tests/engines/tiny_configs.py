"""Tiny configurations of every causal architecture that vLLM's registry has, and of those with images that transformers has,
too. Imported where vLLM's packages are."""

import re
from functools import cache
from typing import Any

from causal_models import LAYERS, small_config
from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

# Attributes of configurations, by regular expression -> their number: eight ranks share attention heads, two or more
# ranks have the same head of keys and values, and the vocabulary is padded.
_SIZES = {
    r"vocab_size|vocab_size_per_layer_input|padded_vocab_size": 100,
    r"hidden_size|d_model|n_embd|dim|word_embed_proj_dim": 64,
    r"num_attention_heads|n_heads?|num_heads": 8,
    r"linear_num_(key|value)_heads|mamba_(n|num)_heads": 8,
    r"num_key_value_heads": 2,
    r"num_(local_)?experts|n_routed_experts|moe_num_experts": 8,
}

# What an architecture that transformers does not know may ask its configuration for.
# fmt: off
_GENERIC: "dict[str, Any]" = {
    "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "max_position_embeddings": 64,
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "layer_norm_epsilon": 1e-6, "layer_norm_eps": 1e-6,
    "rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "tie_word_embeddings": False,
    "sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2),
    # experts
    "num_experts": 8, "num_experts_per_tok": 2, "n_routed_experts": 8, "num_local_experts": 8,
    "n_shared_experts": 1, "num_shared_experts": 1, "moe_intermediate_size": 48,
    "moe_shared_expert_intermediate_size": 48, "shared_expert_intermediate_size": 48, "first_k_dense_replace": 1,
    "norm_topk_prob": True, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "moe_num_experts": 8,
    "moe_top_k": 2, "share_expert_dim": 48, "mlp_layer_types": ["dense"] + ["sparse"] * (LAYERS - 1),
    "layer_group_size": 2,
    # latent attention
    "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    # what only one or two of them ask for
    "activation_function": "silu", "embedding_dropout": 0.0, "use_bias": False, "use_qkv_bias": False,
    "short_conv_kernel_size": 4, "max_window_layers": LAYERS, "use_sliding_window": False,
    "max_position_embedding": 64, "dim_model_base": 32, "scale_emb": 1, "scale_depth": 1.4,
    "query_pre_attn_scalar": 8, "hidden_activation": "gelu_pytorch_tanh", "final_logit_softcapping": None,
    "attention_bias": False, "rope_local_theta": 1e4, "interleaved_sliding_window": [32, None] * (LAYERS // 2),
    "use_mup": False, "mup_scale_factor": 1.0, "output_mult": 1.0, "norm_expert_weight": True, "share_q_dim": 24,
    "num_attention_groups": 2, "use_moe_router_bias": True, "need_fp32_gate": True,
    "moe_router_scaling_factor": 1.0, "swiglu_limits": None, "swiglu_limits_shared": None,
}
_MIMO_V2: "dict[str, Any]" = {
    "hybrid_layer_pattern": [0, 1] * (LAYERS // 2), "moe_layer_freq": [0] + [1] * (LAYERS - 1),
    "swa_num_attention_heads": 8, "swa_num_key_value_heads": 2, "swa_head_dim": 8, "swa_v_head_dim": 8,
    "sliding_window_size": 32, "layernorm_epsilon": 1e-6, "v_head_dim": 8, "attention_bias": False,
    "n_shared_experts": None,
}
# fmt: on
_LINEAR: "dict[str, Any]" = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 8,
}
# fmt: off
_CHATGLM: "dict[str, Any]" = {
    "padded_vocab_size": 100, "num_layers": LAYERS, "kv_channels": 8, "multi_query_attention": True,
    "multi_query_group_num": 2, "ffn_hidden_size": 48, "add_qkv_bias": True, "add_bias_linear": False,
    "layernorm_epsilon": 1e-6, "rmsnorm": True, "post_layer_norm": True, "original_rope": True,
    "hidden_dropout": 0.0, "fp32_residual_connection": False, "apply_residual_connection_post_layernorm": False,
}
# fmt: on


class _Names(dict):
    """A dictionary whose entries are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)


class Generic(PretrainedConfig):
    """A configuration with whatever attributes it is given."""

    model_type = "lockstep_generic"

    def __init__(self, **attributes: Any) -> None:
        blocks = attributes.pop("block_configs", None)
        super().__init__(**attributes)
        if blocks is not None:
            self.block_configs = [_Names({part: _Names(own) for part, own in block.items()}) for block in blocks]


AutoConfig.register(Generic.model_type, Generic)
_MODEL_TYPES = {
    name: model_type
    for names in (MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    for model_type, name in names.items()
}
_SPARSE_LATENT: "dict[str, Any]" = {
    "topk_method": "noaux_tc",
    "first_k_dense_replace": 1,
    "mlp_layer_types": ["dense"] + ["sparse"] * (LAYERS - 1),
}
_HALVES = LAYERS // 2

# What an architecture has of its own, as "part.attribute": what published configurations have and transformers' classes do
# not, and layers of all kinds. "model_type" is a class of vLLM's.
# fmt: off
_OWN: "dict[str, dict[str, Any]]" = {
    "AfmoeForCausalLM": {"score_func": "sigmoid", "route_norm": True, "n_group": 1, "topk_group": 1},
    "AliceAIForCausalLM": {
        **_LINEAR, "kda_allow_negative_eigenvalues": False, "router_score_function": "sigmoid",
        "router_bias_correction": True, "block_attn_res_block_size": 2,
        "layer_types": ["linear_attention", "full_attention"] * _HALVES},
    "BailingMoeV2_5ForCausalLM": {"group_norm_size": 8},
    "BailingMoeV3ForCausalLM": {"no_kda_lora": True},
    "ChatGLMForConditionalGeneration": _CHATGLM,
    "ChatGLMModel": _CHATGLM,
    "DeciLMForCausalLM": {
        "block_configs": [
            {"attention": {"no_op": layer == 1, "n_heads_in_group": 4}, "ffn": {"no_op": layer == 2, "ffn_mult": 1.5}}
            for layer in range(LAYERS)]},
    "DeepseekV32ForCausalLM": _SPARSE_LATENT,
    "DeepseekV3ForCausalLM": {"topk_method": "noaux_tc"},
    "DomynEdgeForCausalLM": {
        "position_layers": ["rope", "nope"] * _HALVES, "window_sizes": [[32, 0], [0, 0]] * _HALVES,
        "per_layer_config": {layer: {"head_dim": 8} for layer in range(LAYERS)}},
    "DoryForCausalLM": {
        "model_type": "dory", "layer_types": ["sliding_attention", "mlp", "full_attention", "mlp"],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}
            for kind in ("sliding_attention", "full_attention")},
        "n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 1, "n_recurrent_loops": 2},
    "FalconForCausalLM": {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 256},
    "FalconH1ForCausalLM": {"mamba_d_ssm": 64, "mamba_d_head": 8, "mamba_n_heads": 8},
    "GPTJForCausalLM": {"rotary_dim": 4},
    "Gemma4ForCausalLM": {"per_layer_config": None, "global_head_dim": 8},
    "Glm4MoeForCausalLM": {"head_dim": 8},
    "Glm4vMoeForConditionalGeneration": {"text_config.head_dim": 8, "text_config.use_qk_norm": False},
    "Glm4MoeLiteForCausalLM": {"first_k_dense_replace": 1},
    "GlmMoeDsaForCausalLM": _SPARSE_LATENT,
    "GptOssForCausalLM": {"intermediate_size": 256, "num_key_value_heads": 8},
    "HYV3ForCausalLM": {"first_k_dense_replace": 1, "expert_hidden_dim": 48, "route_norm": True, "qk_norm": True},
    "InklingForCausalLM": {"model_type": "inkling_model", "shared_expert_sink": True},
    "K2HorizonForCausalLM": {
        "decoder_sparse_step": 1, "mlp_only_layers": [], "attention_gate_func": "sigmoid",
        "layernorm_num_groups": 1, "moe_gate_bias": True, "mova_num_experts": 4, "mova_num_experts_per_tok": 2,
        "query_key_norm": True, "rope_head_dim": 8, "router_scaling_factor": 1.0, "router_score_func": "sigmoid"},
    "Lfm2ForCausalLM": {
        "block_dim": 64, "block_multiple_of": 8, "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0,
        "block_ff_dim": 48},
    "LongcatFlashForCausalLM": {
        "mla_scale_q_lora": True, "mla_scale_kv_lora": True, "zero_expert_type": "identity", "zero_expert_num": 0,
        "qk_head_dim": 16},
    "MiMoV2FlashForCausalLM": _MIMO_V2,
    "MiMoV2ForCausalLM": _MIMO_V2,
    "MiniCPMForCausalLM": {"num_experts": 0},
    "MiniMaxM2ForCausalLM": {"rotary_dim": 4, "scoring_func": "sigmoid", "use_routing_bias": True},
    "MuseGlimmerForCausalLM": {
        "layer_rope_theta": [1e4, 0] * _HALVES, "qk_scale_factor": 1.0, "post_norm_eps": 1e-6,
        "output_multiplier": 1.0, "hidden_activation": "silu"},
    "NemotronHPuzzleForCausalLM": {
        "hybrid_override_pattern": "M*-E", "ssm_state_size": 8, "mamba_num_heads": 8, "mamba_head_dim": 8,
        "n_groups": 8, "conv_kernel": 4, "use_conv_bias": True, "mamba_hidden_act": "silu",
        "mlp_hidden_act": "relu2", "mlp_bias": False},
    "OlmoHybridForCausalLM": {"layer_types": ["linear_attention", "full_attention"] * _HALVES},
    "Param2MoEForCausalLM": {"num_key_value_heads": 8},
    "Qwen3VLMoeForConditionalGeneration": {"text_config.norm_topk_prob": True},
    "Qwen4ExpForCausalLM": {"output_gate_type": "silu"},
    "TeleChat2ForCausalLM": {"n_layer": LAYERS, "n_head": 8, "ffn_hidden_size": 48},
    "Zamba2ForCausalLM": {
        "attention_hidden_size": 128, "attention_head_dim": 16, "num_key_value_heads": 8, "num_mem_blocks": 2,
        "hybrid_layer_ids": [1, 3], "layers_block_type": ["linear_attention", "hybrid"] * _HALVES},
}
# fmt: on


def _class_of_vllm(model_type: str) -> "type[PretrainedConfig]":
    from vllm.transformers_utils.config import _CONFIG_REGISTRY  # SGLang's programs have no vLLM

    return _CONFIG_REGISTRY[model_type]


def is_known(architecture: str) -> bool:
    """Whether transformers has this architecture, too."""
    return architecture in _MODEL_TYPES and "model_type" not in _OWN.get(architecture, {})


@cache
def tiny_config(architecture: str) -> PretrainedConfig:
    """A configuration that transformers reads back as it is."""
    own = _OWN.get(architecture, {})
    if is_known(architecture):
        config = small_config(_MODEL_TYPES[architecture])
        _resize(config)
        for path, value in own.items():
            part, _, attribute = path.rpartition(".")
            setattr(getattr(config, part) if part else config, attribute, value)
    else:
        kind = _class_of_vllm(own["model_type"]) if "model_type" in own else Generic
        config = kind(**{**_GENERIC, **{name: value for name, value in own.items() if name != "model_type"}})
    config.architectures = [architecture]
    return config


def _resize(config: PretrainedConfig) -> None:
    for key, value in dict(vars(config)).items():
        if isinstance(value, PretrainedConfig):
            _resize(value)
        elif type(value) is int:
            size = next((size for name, size in _SIZES.items() if re.fullmatch(name, key)), value)
            setattr(config, key, size)
