"""What slicing.py says of vLLM's parameters is what vLLM's own classes and loaders give, by name, dtype, shape and bits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hf_models import MIXTURES, MODELS, tiny_config, write_checkpoint
from safetensors.torch import load_file
from slicing import Place, engine_tensors, places
from vllm_process import VllmLoader

# Eight ranks divide everything: key/value heads are shared by four of them, and there is an expert for each, as vLLM wants.
# Heads have a size that it has kernels for.
_HEADS: "dict[str, Any]" = {"num_attention_heads": 8, "head_dim": 16}
_HIDDEN: "dict[str, Any]" = {"num_attention_heads": 8, "hidden_size": 128}
_LATENT: "dict[str, Any]" = {
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "n_routed_experts": 8,
    "topk_method": "noaux_tc",  # as published configurations say; else vLLM's routers have no bias
}
_OVERRIDES: "dict[str, dict[str, Any]]" = {
    "llama": _HEADS,
    "qwen2": _HIDDEN,
    "qwen3": _HEADS,
    "qwen3_moe": {**_HEADS, "num_experts": 8},
    "qwen2_moe": {**_HIDDEN, "num_experts": 8},
    "mixtral": {**_HEADS, "num_local_experts": 8},
    "deepseek_v3": _LATENT,
    "moonlight": _LATENT,
    "glm4": _HEADS,
    "glm4_moe": {**_HEADS, "n_routed_experts": 8},
}


@pytest.fixture(scope="module")
def loader():
    """One process for all, for importing vLLM takes seconds."""
    loader = VllmLoader()
    yield loader
    loader.close()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Gives the directory of a model's checkpoint, written when it is first asked for."""
    written: "dict[str, Path]" = {}

    def get(model: str, **overrides: Any) -> Path:
        key = f"{model}{overrides}"
        if key not in written:
            written[key] = tmp_path_factory.mktemp(model)
            write_checkpoint(written[key], tiny_config(model, **{**_OVERRIDES[model], **overrides}), seed=3)
        return written[key]

    return get


def _check(model: str, directory: Path, overrides: "dict[str, Any]", place: Place, got: "dict[str, torch.Tensor]") -> None:
    config = tiny_config(model, **{**_OVERRIDES[model], **overrides})
    want = engine_tensors("vllm", config, load_file(directory / "model.safetensors"), place)
    assert sorted(got) == sorted(want)
    for name, tensor in want.items():
        assert (got[name].dtype, got[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(got[name], tensor), name


@pytest.mark.parametrize("tensor_parallel", [1, 2, 4, 8])
@pytest.mark.parametrize("model", MODELS)
def test_every_rank_is_what_vllm_loads(model: str, tensor_parallel: int, loader: VllmLoader, checkpoint: Any) -> None:
    directory = checkpoint(model)
    for place in places(tensor_parallel):
        _check(model, directory, {}, place, loader.parameters(directory, tensor=place.tensor))


@pytest.mark.parametrize("tensor_parallel", [2, 4])
@pytest.mark.parametrize("model", MIXTURES)
def test_experts_of_expert_parallel_ranks_are_whole(
    model: str, tensor_parallel: int, loader: VllmLoader, checkpoint: Any
) -> None:
    directory = checkpoint(model)
    for place in places(tensor_parallel, tensor_parallel):
        got = loader.parameters(directory, tensor=place.tensor, expert_parallel=True)
        _check(model, directory, {}, place, got)


@pytest.mark.parametrize("model", MIXTURES)
def test_experts_are_spread_or_cut_over_replicas_too(model: str, loader: VllmLoader, checkpoint: Any) -> None:
    directory = checkpoint(model)
    for replica in range(2):
        spread = Place(expert=(2, replica))
        _check(model, directory, {}, spread, loader.parameters(directory, data=(2, replica), expert_parallel=True))
        for rank in range(2):
            cut = Place(tensor=(2, rank), expert_tensor=(4, 2 * replica + rank))
            _check(model, directory, {}, cut, loader.parameters(directory, tensor=(2, rank), data=(2, replica)))


def test_the_first_ranks_have_the_experts_that_are_over(loader: VllmLoader, checkpoint: Any) -> None:
    overrides = {"num_experts": 6}
    directory = checkpoint("qwen3_moe", **overrides)
    for place in places(4, 4):
        got = loader.parameters(directory, tensor=place.tensor, expert_parallel=True)
        _check("qwen3_moe", directory, overrides, place, got)
