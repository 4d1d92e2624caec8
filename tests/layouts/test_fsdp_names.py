"""Under which names, and cut how, a transformers model is exported: as its save_pretrained writes it."""

import pytest
import torch
from causal_models import small_config
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, MarianConfig, MarianMTModel

import lockstep
from lockstep.core import checkpoint

_BASE = {
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "head_dim": 4,
    "pad_token_id": None,
}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 10}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
_SHARED = {**_MOE, "shared_expert_intermediate_size": 12}
_ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 10, "n_routed_experts": 4, "n_group": 1, "topk_group": 1}
_LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}
FAMILIES = {
    "llama": {},
    "qwen3": {"tie_word_embeddings": True},
    "gemma3_text": {},
    "qwen3_moe": _MOE,
    "qwen2_moe": _SHARED,
    "mixtral": _LOCAL,
    "phimoe": _LOCAL,
    "minimax_m2": _LOCAL,
    "olmoe": _MOE,
    "jamba": {"num_experts": 4},
    "granitemoe": _LOCAL,
    "gpt_oss": _LOCAL,
    "qwen3_next": _SHARED,
    "qwen3_5_moe_text": _SHARED,
    "deepseek_v3": {**_ROUTED, **_LATENT, "first_k_dense_replace": 1},
    "glm4_moe": {**_ROUTED, "first_k_dense_replace": 1},
    "camembert": {"is_decoder": True},  # the tied weight comes first under the name that is not kept
    "xlm-roberta": {"is_decoder": True},
}


def exported(model) -> "dict[str, torch.Tensor]":
    """The checkpoint tensors that are made of the model's tensors, by the part's description."""
    part = lockstep.fsdp(model)
    found: "dict[str, torch.Tensor]" = {}
    for tensor, local in zip(part.describe()["tensors"], part.locals()):
        for target in tensor["into"]:
            assert target["name"] not in found
            size = [1] * (len(tensor["shape"]) - len(target["shape"])) + target["shape"]
            block = tuple(slice(first, first + length) for first, length in zip(target["from"], size))
            found[target["name"]] = local.owner.detach()[block].reshape(target["shape"])
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_a_models_parameters_become_what_transformers_saves(tmp_path, family):
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**_BASE, **FAMILIES[family]}))
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    found = exported(model)
    assert found.keys() == saved.keys()
    assert [name for name, tensor in saved.items() if not torch.equal(found[name], tensor)] == []


def test_parameters_that_transformers_does_not_save_are_not_exported(tmp_path):
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 32, "pad_token_id": 0}
    model = MarianMTModel(MarianConfig(**sizes, decoder_vocab_size=32, decoder_start_token_id=0))
    model.save_pretrained(tmp_path)
    assert exported(model).keys() == load_file(tmp_path / "model.safetensors").keys()


KEPT = {
    "qwen3_moe": 0,
    "gpt_oss": 0,  # it names norms, but these are kept from float16 only
    "ernie4_5_moe": 6,  # of each sparse layer, the router and its bias
    "hunyuan_v1_moe": 4,  # the routers, which their class makes in float32 without a word
    "zamba": 4,
    "xlnet": 37,
}


@pytest.mark.parametrize("family", KEPT)
def test_float32_masters_are_rounded_but_for_what_transformers_keeps_in_float32(tmp_path, family):
    model = AutoModelForCausalLM.from_config(small_config(family), dtype=torch.float32)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    description = lockstep.fsdp(model, dtype=torch.bfloat16).describe()["tensors"]
    dtypes = {tensor["name"]: tensor["dtype"] for tensor in description}
    expected = {name: "F32" if p.dtype == torch.float32 else "BF16" for name, p in loaded.named_parameters()}
    assert {name: dtypes[name] for name in expected} == expected
    assert list(expected.values()).count("F32") == KEPT[family]


SAVERS = {
    "transposed": lambda tensors: {"w": tensors["weight"].t()},
    "joined": lambda tensors: {"w": torch.cat([tensors["weight"], tensors["weight"]])},
    "strided": lambda tensors: {"w": tensors["weight"][::2]},
    "flattened": lambda tensors: {"w": tensors["weight"].reshape(2, 6, 6)[:, 1:3].reshape(2, 12)},
}


@pytest.mark.parametrize("how", SAVERS)
def test_a_checkpoint_tensor_that_is_no_block_of_a_parameter_is_refused_by_name(monkeypatch, how):
    monkeypatch.setattr(checkpoint, "as_saved", lambda model, tensors: SAVERS[how](tensors))
    with pytest.raises(lockstep.BadDataError, match='checkpoint tensor "w"'):
        lockstep.fsdp(torch.nn.Linear(6, 12, bias=False)).describe()


def test_other_modules_keep_their_names():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    named = [tensor["name"] for tensor in lockstep.fsdp(model).describe()["tensors"]]
    assert named == [
        *("0.weight", "0.bias", "1.weight", "1.bias"),
        *("1.running_mean", "1.running_var", "1.num_batches_tracked"),
    ]
