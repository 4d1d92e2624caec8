"""Weights that real loaders hold, against a checkpoint's: for test_vllm_families.py, test_vllm_in_place.py and
test_sglang_in_place.py."""

import torch
from safetensors.torch import load_file


def train(tensors: "dict[str, torch.Tensor]", step: int) -> None:
    """Some elements of every tensor change."""
    generator = torch.Generator().manual_seed(step)
    for tensor in tensors.values():
        chosen = torch.rand(tensor.shape, generator=generator) < 0.05
        tensor[chosen] = torch.randn(int(chosen.sum()), generator=generator).to(tensor.dtype)


def check(saved, checkpoint, loader, **rank) -> "dict[str, torch.Tensor]":
    """What is saved is what vLLM's own loader makes of the checkpoint."""
    got, want = load_file(saved), loader.parameters(checkpoint, **rank)
    assert sorted(got) == sorted(want)
    for name, tensor in want.items():
        assert got[name].dtype == tensor.dtype and torch.equal(got[name], tensor), name
    return got
