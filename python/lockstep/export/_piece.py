"""What a rank holds of a tensor; pieces, for trainers that shard by themselves."""

from dataclasses import dataclass
from typing import Any, Tuple

from lockstep.export._parts import Box, Shard, whole_shard


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


def shard_of(name: str, tensor: Any, dtype: str, frozen: bool) -> Shard:
    """What this rank holds of ``tensor``: a DTensor's shard, a Piece, or the whole of any other tensor. BadDataError names
    the tensor."""
    if isinstance(tensor, Piece):
        size = tuple(tensor.tensor.shape)
        box = Box((0,) * len(size), tensor.start, size)
        return Shard(name, dtype, tensor.shape, size, [box], frozen)
    if not hasattr(tensor, "device_mesh"):
        return whole_shard(name, tensor, dtype, frozen)
    from lockstep.export._dtensors import boxes_of  # there is PyTorch then

    local_shape = tuple(tensor.to_local().shape)
    return Shard(name, dtype, tuple(tensor.shape), local_shape, boxes_of(name, tensor), frozen)
