"""Pieces of tensors, for trainers that shard by themselves."""

from dataclasses import dataclass
from typing import Any, Tuple


@dataclass(frozen=True)
class Piece:
    """A block of a whole tensor of ``shape``, with its first element at ``start``: what one rank holds of it.

    Given to ``named_tensors`` in place of a tensor. The pieces of all ranks must be the whole; those that several ranks
    hold, too, are written once.
    """

    tensor: Any
    shape: Tuple[int, ...]
    start: Tuple[int, ...]

    @property
    def dtype(self) -> Any:
        return self.tensor.dtype

    def data_ptr(self) -> int:
        return int(self.tensor.data_ptr())

    def to_local(self) -> Any:
        return self.tensor
