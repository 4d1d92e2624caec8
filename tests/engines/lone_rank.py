"""What a rank has instead of other ranks, and a model while it is built. For vllm_model.py and sglang_model.py."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import torch


class Group:
    """As much of a group of processes as layers ask for while they are built and loaded."""

    device_communicator = ca_comm = None

    def __init__(self, size: int, rank: int) -> None:
        self.world_size, self.ranks = size, list(range(size))
        self.rank = self.local_rank = self.rank_in_group = rank
        self.is_first_rank, self.is_last_rank = rank == 0, rank == size - 1
        self.device_group = self.cpu_group = SimpleNamespace(size=lambda: size, rank=lambda: rank)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """PyTorch's, while inside."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
