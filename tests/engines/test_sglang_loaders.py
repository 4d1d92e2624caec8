"""What slicing.py gives for SGLang's parameters is what SGLang's classes and loaders give: names, dtypes, shapes, bits. So
does a recording of the loaders, also of the tensors that latent attention has beside its parameters."""

from pathlib import Path

import pytest
import torch
from hf_models import MIXTURES, MODELS
from safetensors.torch import load_file
from slicing import Place, Tensors, engine_tensors, places
from transformers import PretrainedConfig

# SGLang's Mixtral cuts heads of hidden_size / num_attention_heads, whatever head_dim is.
OVERRIDES = {"mixtral": {"hidden_size": 128}}

# Shared experts that SGLang has in the stack of the others, where it can: with DeepSeek's own number of experts only.
FUSED = [("glm4_moe", {}), ("deepseek_v3", {"n_routed_experts": 256, "num_hidden_layers": 2})]


def _check(got: Tensors, tensors: Tensors, config: PretrainedConfig, place: Place) -> None:
    want = engine_tensors("sglang", config, tensors, place)
    assert sorted(got) == sorted(want)
    for name, tensor in want.items():
        assert (got[name].dtype, got[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(got[name], tensor), name


def _tensors(directory: Path) -> Tensors:
    return load_file(directory / "model.safetensors")


@pytest.mark.parametrize("tensor_parallel", [1, 2, 4, 8])
@pytest.mark.parametrize("model", MODELS)
def test_every_rank_is_what_sglang_loads(model, tensor_parallel, sglang_loader, vllm_checkpoints):
    directory, config = vllm_checkpoints.get(model, **OVERRIDES.get(model, {}))
    for place in places(tensor_parallel):
        got = sglang_loader.parameters(directory, tensor=place.tensor)
        _check(got, _tensors(directory), config, place)
    assert sglang_loader.differences(directory, tensor=place.tensor) == []


@pytest.mark.parametrize(("tensor_parallel", "shares"), [(2, 2), (4, 4), (8, 4)])
@pytest.mark.parametrize("model", MIXTURES)
def test_experts_are_spread_first_and_cut_over_the_ranks_that_are_left(
    model, tensor_parallel, shares, sglang_loader, vllm_checkpoints
):
    directory, config = vllm_checkpoints.get(model, **OVERRIDES.get(model, {}))
    for place in places(tensor_parallel, shares):
        got = sglang_loader.parameters(directory, tensor=place.tensor, expert_shares=shares)
        _check(got, _tensors(directory), config, place)
    assert sglang_loader.differences(directory, tensor=place.tensor, expert_shares=shares) == []


@pytest.mark.parametrize("tensor_parallel", [1, 2])
@pytest.mark.parametrize(("model", "overrides"), FUSED)
def test_a_shared_expert_can_be_one_more_of_the_stack(
    model, overrides, tensor_parallel, sglang_loader, vllm_checkpoints
):
    directory, config = vllm_checkpoints.get(model, **overrides)
    as_one_more = {
        name.replace("shared_experts", f"experts.{config.n_routed_experts}"): tensor
        for name, tensor in _tensors(directory).items()
    }
    for place in places(tensor_parallel):
        got = sglang_loader.parameters(directory, tensor=place.tensor, fused=True)
        _check(got, as_one_more, config, place)
    assert sglang_loader.differences(directory, tensor=place.tensor, fused=True) == []
