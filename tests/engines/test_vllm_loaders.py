"""What slicing.py gives for vLLM's parameters is what vLLM's classes and loaders give: names, dtypes, shapes, bits."""

from pathlib import Path

import pytest
import torch
from hf_models import MIXTURES, MODELS
from safetensors.torch import load_file
from slicing import Place, engine_tensors, places
from transformers import PretrainedConfig


def _check(got: "dict[str, torch.Tensor]", directory: Path, config: PretrainedConfig, place: Place) -> None:
    want = engine_tensors("vllm", config, load_file(directory / "model.safetensors"), place)
    assert sorted(got) == sorted(want)
    for name, tensor in want.items():
        assert (got[name].dtype, got[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(got[name], tensor), name


@pytest.mark.parametrize("tensor_parallel", [1, 2, 4, 8])
@pytest.mark.parametrize("model", MODELS)
def test_every_rank_is_what_vllm_loads(model, tensor_parallel, vllm_loader, vllm_checkpoints):
    directory, config = vllm_checkpoints.get(model)
    for place in places(tensor_parallel):
        got = vllm_loader.parameters(directory, tensor=place.tensor)
        _check(got, directory, config, place)


@pytest.mark.parametrize("tensor_parallel", [2, 4])
@pytest.mark.parametrize("model", MIXTURES)
def test_experts_of_expert_parallel_ranks_are_whole(model, tensor_parallel, vllm_loader, vllm_checkpoints):
    directory, config = vllm_checkpoints.get(model)
    for place in places(tensor_parallel, tensor_parallel):
        got = vllm_loader.parameters(directory, tensor=place.tensor, expert_parallel=True)
        _check(got, directory, config, place)


@pytest.mark.parametrize("model", MIXTURES)
def test_experts_are_spread_or_cut_over_replicas_too(model, vllm_loader, vllm_checkpoints):
    directory, config = vllm_checkpoints.get(model)
    for replica in range(2):
        spread = vllm_loader.parameters(directory, data=(2, replica), expert_parallel=True)
        _check(spread, directory, config, Place(expert=(2, replica)))
        for rank in range(2):
            cut = vllm_loader.parameters(directory, tensor=(2, rank), data=(2, replica))
            place = Place(tensor=(2, rank), expert_tensor=(4, 2 * replica + rank))
            _check(cut, directory, config, place)


def test_the_first_ranks_have_the_experts_that_are_over(vllm_loader, vllm_checkpoints):
    directory, config = vllm_checkpoints.get("qwen3_moe", num_experts=6)
    for place in places(4, 4):
        got = vllm_loader.parameters(directory, tensor=place.tensor, expert_parallel=True)
        _check(got, directory, config, place)
