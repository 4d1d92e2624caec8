"""Tiny configurations of the causal architectures that SGLang's registry has. Imported where SGLang's packages are."""

import json
from pathlib import Path
from typing import Any

import tiny_configs
from causal_models import LAYERS
from transformers import PretrainedConfig

# What SGLang's classes ask a configuration for that transformers' own, or those of tiny_configs.py, have not.
# fmt: off
_MISSING: "dict[str, Any]" = {
    "pad_token_id": 0, "moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "hidden_act": "silu", "attention_dropout": 0.0, "sliding_window_size": 32, "full_attention_interval": 4,
    "softmax_scale": 1.0, "kda_safe_gate": False, "num_loops": 1,
}
# fmt: on
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
# fmt: off
_OWN: "dict[str, dict[str, Any]]" = {
    "BailingMoeV2_5ForCausalLM": {"layer_group_size": 2},
    "Cohere2MoeForCausalLM": {"mlp_layer_types": ["dense"] + ["sparse"] * (LAYERS - 1)},
    "DeepseekV2ForCausalLM": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "Exaone4ForCausalLM": {"sliding_window_pattern": "LLLG"},
    "ExaoneMoEForCausalLM": {
        "sliding_window_pattern": "LLLG", "is_moe_layer": [False] + [True] * (LAYERS - 1),
        "scoring_func": "sigmoid"},
    "ExaoneMoeForCausalLM": {"sliding_window_pattern": "LLLG", "is_moe_layer": [False] + [True] * (LAYERS - 1)},
    "Gemma2ForCausalLM": {"hidden_act": "gelu_pytorch_tanh"},
    "HunYuanMoEV1ForCausalLM": {
        "moe_intermediate_size": [48] * LAYERS, "use_mixed_mlp_moe": True, "num_shared_expert": [1] * LAYERS,
        "moe_topk": [2] * LAYERS, "use_qk_norm": True, "use_cla": False, "attention_head_dim": 8},
    **dict.fromkeys(("Grok1ForCausalLM", "Grok1ModelForCausalLM"), {
        "output_multiplier_scale": 1.0, "embedding_multiplier_scale": 1.0, "attn_logit_softcapping": 30.0,
        "final_logit_softcapping": 50.0, "router_logit_softcapping": 30.0, "residual_moe": True}),
    "K2HorizonForCausalLM": {
        "xllm_source_router_gemm_partitions": 1, "query_key_norm": False,
        "layer_types": ["full_attention"] * LAYERS, "sliding_window": None},
    "XllmForCausalLM": {
        "layer_types": ["full_attention"] * LAYERS, "sliding_window": None, "attention_gate_func": "silu"},
    "Phi3SmallForCausalLM": {
        "hidden_act": "gegelu", "mup_embedding_multiplier": 10.0, "mup_use_scaling": True,
        "mup_width_multiplier": 8.0, "mup_attn_multiplier": 1.0, "gegelu_limit": 20.0, "ff_intermediate_size": 48,
        "ff_dim_multiplier": None, "dense_attention_every_n_layers": 1, "rope_embedding_base": 1e4,
        "rope_position_scale": 1.0, "attention_bias": True, "dummy_token_indices": [],
        "blocksparse_homo_head_pattern": False, "blocksparse_block_size": 8,
        "blocksparse_triton_kernel_block_size": 8, "blocksparse_num_local_blocks": 4, "blocksparse_vert_stride": 2},
    "HunYuanDenseV1ForCausalLM": {"use_qk_norm": True},
    "LongcatFlashForCausalLM": {
        "rope_parameters": _ROPE, "mla_scale_q_lora": True, "mla_scale_kv_lora": True,
        "zero_expert_type": "identity"},
    "Mamba2ForCausalLM": {"intermediate_size": 64, "rms_norm": True},
    "MiniMaxM3SparseForCausalLM": {
        "moe_layer_freq": [0] + [1] * (LAYERS - 1), "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
        "dense_intermediate_size": 48, "num_mtp_modules": 0, "qk_norm_type": "per_head", "rotary_dim": 4,
        "use_qk_norm": True},
    "OlmoForCausalLM": {"num_key_value_heads": 8},
    "OlmoeForCausalLM": {"num_key_value_heads": 8},
    "SolarForCausalLM": {"bskcn_1": [0], "bskcn_2": [1], "bskcn_3": [2], "bskcn_4": [3], "bskcn_tv": [0.9, 0.8]},
    "Spark2_5ForCausalLM": {"rope_parameters": {"sliding_attention": _ROPE, "full_attention": _ROPE}},
    "Step3p5ForCausalLM": {
        "yarn_only_types": [], "partial_rotary_factors": [1.0] * LAYERS, "moe_layers_enum": "1,2,3",
        "attention_other_setting": {"num_attention_heads": 8, "num_attention_groups": 2},
        "use_head_wise_attn_gate": True},
    "ZayaForCausalLM": {"num_experts_per_tok": 1, "layer_types": ["hybrid", "full_attention"] * (LAYERS // 2)},
}
# fmt: on

# In the file as it is: SGLang has a configuration of its own, with other names than transformers'.
_WRITTEN: "dict[str, dict[str, Any]]" = {
    "NemotronHForCausalLM": {"layers_block_type": ["mamba", "attention", "mlp", "moe"]},
    "LongcatFlashForCausalLM": {"rope_scaling": _ROPE},
    "ZayaForCausalLM": {"num_experts_per_tok": 1, "layer_types": ["hybrid"] * LAYERS},
}


def write_config(architecture: str, directory: Path) -> None:
    """The file that SGLang reads."""
    tiny_config(architecture).save_pretrained(directory)
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **_WRITTEN.get(architecture, {})}))


def tiny_config(architecture: str) -> PretrainedConfig:
    """A configuration that transformers reads back as it is."""
    config = tiny_configs.tiny_config(architecture)
    for name, value in _MISSING.items():
        if not hasattr(config, name):
            setattr(config, name, value)
    for name, value in _OWN.get(architecture, {}).items():
        setattr(config, name, value)
    return config
