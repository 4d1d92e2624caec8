"""What slicing.py says of vLLM's parameters is what vLLM's own classes and loaders give, by name, dtype, shape and bits."""

from pathlib import Path

import pytest
import torch
from hf_models import MIXTURES, MODELS
from safetensors.torch import load_file
from slicing import Place, engine_tensors, places
from transformers import PretrainedConfig
from vllm_checkpoints import VllmCheckpoints
from vllm_process import VllmLoader


@pytest.fixture(scope="module")
def loader():
    """One process for all, for importing vLLM takes seconds."""
    loader = VllmLoader()
    yield loader
    loader.close()


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Checkpoints that all tests share."""
    return VllmCheckpoints(tmp_path_factory.mktemp("checkpoints"))


def _check(got: "dict[str, torch.Tensor]", directory: Path, config: PretrainedConfig, place: Place) -> None:
    want = engine_tensors("vllm", config, load_file(directory / "model.safetensors"), place)
    assert sorted(got) == sorted(want)
    for name, tensor in want.items():
        assert (got[name].dtype, got[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(got[name], tensor), name


@pytest.mark.parametrize("tensor_parallel", [1, 2, 4, 8])
@pytest.mark.parametrize("model", MODELS)
def test_every_rank_is_what_vllm_loads(model, tensor_parallel, loader, checkpoints):
    directory, config = checkpoints.get(model)
    for place in places(tensor_parallel):
        _check(loader.parameters(directory, tensor=place.tensor), directory, config, place)


@pytest.mark.parametrize("tensor_parallel", [2, 4])
@pytest.mark.parametrize("model", MIXTURES)
def test_experts_of_expert_parallel_ranks_are_whole(model, tensor_parallel, loader, checkpoints):
    directory, config = checkpoints.get(model)
    for place in places(tensor_parallel, tensor_parallel):
        got = loader.parameters(directory, tensor=place.tensor, expert_parallel=True)
        _check(got, directory, config, place)


@pytest.mark.parametrize("model", MIXTURES)
def test_experts_are_spread_or_cut_over_replicas_too(model, loader, checkpoints):
    directory, config = checkpoints.get(model)
    for replica in range(2):
        spread = loader.parameters(directory, data=(2, replica), expert_parallel=True)
        _check(spread, directory, config, Place(expert=(2, replica)))
        for rank in range(2):
            cut = loader.parameters(directory, tensor=(2, rank), data=(2, replica))
            place = Place(tensor=(2, rank), expert_tensor=(4, 2 * replica + rank))
            _check(cut, directory, config, place)


def test_the_first_ranks_have_the_experts_that_are_over(loader, checkpoints):
    directory, config = checkpoints.get("qwen3_moe", num_experts=6)
    for place in places(4, 4):
        got = loader.parameters(directory, tensor=place.tensor, expert_parallel=True)
        _check(got, directory, config, place)
