"""lockstep.tensors_meta(config) is what a checkpoint of that configuration holds, without model or process group."""

import pytest
import torch
from hf_models import MODELS, has_mtp, published_tensors, tiny_config
from transformers import AutoConfig

import lockstep
from lockstep.core.tensors import describe

BYTES = {"BF16": 2, "F32": 4}


@pytest.mark.parametrize("model", MODELS)
def test_the_dry_run_gives_the_names_shapes_and_dtypes_of_the_checkpoint(checkpoints, model):
    checkpoint = checkpoints.get(model)
    expected = {meta.name: meta for meta in describe(published_tensors(checkpoint))}
    found = lockstep.tensors_meta(AutoConfig.from_pretrained(checkpoint))
    assert {meta.name: meta for meta, _ in found} == expected
    assert len(found) == len(expected)
    assert lockstep.tensors_meta(checkpoint / "config.json") == found


@pytest.mark.parametrize("model", MODELS)
def test_tensors_lie_back_to_back_in_the_order_given(checkpoints, model):
    end = 0
    for meta, offset in lockstep.tensors_meta(checkpoints.get(model) / "config.json"):
        size = BYTES[meta.dtype]
        assert offset == -(-end // size) * size, meta.name
        for extent in meta.shape:
            size *= extent
        end = offset + size


def _follow(names: "list[str]", *wanted: str) -> bool:
    first = names.index(wanted[0])
    return names[first : first + len(wanted)] == list(wanted)


@pytest.mark.parametrize("model", MODELS)
def test_what_engines_fuse_is_adjacent_and_layers_are_whole(checkpoints, model):
    names = [meta.name for meta, _ in lockstep.tensors_meta(checkpoints.get(model) / "config.json")]
    layers = 4 + has_mtp(model)
    of_layers = [int(name.split(".")[2]) for name in names if name.startswith("model.layers.")]
    assert of_layers == sorted(of_layers) and set(of_layers) == set(range(layers))
    for layer in range(layers):
        attention = f"model.layers.{layer}.self_attn."
        if model == "deepseek_v3":
            assert _follow(names, f"{attention}q_a_proj.weight", f"{attention}kv_a_proj_with_mqa.weight")
        elif model != "moonlight":
            assert _follow(names, *(f"{attention}{part}_proj.weight" for part in "qkv"))
        if f"{attention}q_proj.bias" in names:
            assert _follow(names, *(f"{attention}{part}_proj.bias" for part in "qkv"))
    gates = [name for name in names if name.endswith((".gate_proj.weight", ".w1.weight"))]
    assert bool(gates) == (model != "glm4")
    for gate in gates:
        up = gate.replace(".gate_proj.", ".up_proj.").replace(".w1.", ".w3.")
        assert _follow(names, gate, up)


def test_a_configuration_that_no_rule_covers_is_refused_by_its_key():
    config = tiny_config("llama", dtype=torch.bfloat16).to_dict()
    with pytest.raises(lockstep.BadDataError, match="model_type.*gpt_neox"):
        lockstep.tensors_meta({**config, "model_type": "gpt_neox"})
    del config["hidden_size"]
    with pytest.raises(lockstep.BadDataError, match="hidden_size"):
        lockstep.tensors_meta(config)
