"""What tiny HuggingFace configurations have in common, without transformers: hf_models.py and megatron_bridge_models.py use it, each with
a transformers of its own."""

from typing import Any

VOCABULARY = 125  # no multiple of anything, so every Megatron model pads it

COMMON: "dict[str, Any]" = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS: "dict[str, Any]" = {"moe_intermediate_size": 48, "num_experts_per_tok": 2}
FIRST_DENSE: "dict[str, Any]" = {
    **EXPERTS,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
LATENT: "dict[str, Any]" = {
    **FIRST_DENSE,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
