"""In place of SGLang's kernels, of which there is no build for CPUs on PyPI: what SGLang needs of it beside PyTorch to serve on
a CPU. For sglang_server.py, by PYTHONPATH."""

from collections.abc import Callable
from typing import Any

import torch


def assign_req_to_token_pool_cpu(
    rows: torch.Tensor, table: torch.Tensor, begin: torch.Tensor, end: torch.Tensor, slots: torch.Tensor, _width: int
) -> None:
    """Row ``rows[i]`` of the table gets, from ``begin[i]`` to ``end[i]``, the next of the slots."""
    used = 0
    for row, first, last in zip(rows.tolist(), begin.tolist(), end.tolist()):
        table[row, first:last] = slots[used : used + last - first]
        used += last - first


def __getattr__(name: str) -> "Callable[..., Any]":
    """The others are imported with modules whose other parts are used (speculative decoding, for example)."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} is not among the stand-ins for tests")

    return missing
