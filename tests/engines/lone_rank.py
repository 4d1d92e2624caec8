"""What a rank has instead of other ranks, and a model while it is built. For vllm_model.py and sglang_model.py."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file


class Group:
    """As much of a group of processes as layers ask for while they are built and loaded."""

    device_communicator = ca_comm = None

    def __init__(self, size: int, rank: int) -> None:
        self.world_size, self.ranks = size, list(range(size))
        self.rank = self.local_rank = self.rank_in_group = rank
        self.is_first_rank, self.is_last_rank = rank == 0, rank == size - 1
        self.device_group = self.cpu_group = SimpleNamespace(size=lambda: size, rank=lambda: rank)


class LoneModel:
    """An engine's model of one rank. ``current()`` makes the engine's globals this rank's."""

    module: torch.nn.Module

    def current(self) -> "contextlib.AbstractContextManager[Any]":
        raise NotImplementedError

    def forget(self) -> None:
        """Its weights are NaN from here on."""
        for parameter in self.module.parameters():
            parameter.data.fill_(float("nan"))

    def load(self, directory: Path) -> None:
        """Runs the engine's loader of this model on a checkpoint of one file."""
        with self.current():
            self.module.load_weights(iter(load_file(directory / "model.safetensors").items()))

    def parameters(self) -> "dict[str, torch.Tensor]":
        """By name, each storage once: what the engine serves from."""
        return {name: parameter.data for name, parameter in self.module.named_parameters()}


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """PyTorch's, while inside."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
