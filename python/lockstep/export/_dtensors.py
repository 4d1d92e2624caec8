"""DTensors: which boxes of the whole tensor this rank's local shard holds, for any layout.

Nothing here communicates, and no split rule is written down here: index tensors are run through the split functions of
PyTorch's own placements, in the order in which PyTorch applied the mesh dimensions.
"""

import itertools
import math
from typing import Sequence, Tuple

import torch
from torch.distributed.tensor import DTensor, Placement, Replicate
from torch.distributed.tensor import Shard as EvenShard
from torch.distributed.tensor.placement_types import _StridedShard

from lockstep.core.errors import BadDataError
from lockstep.export._parts import Box

# A contiguous run along one dimension: (start in the local shard, start in the whole tensor, length).
_Run = Tuple[int, int, int]


def boxes_of(name: str, tensor: DTensor) -> "list[Box]":
    """Empty for an empty shard, and for a rank outside of the mesh.

    BadDataError names a tensor that has partial sums, or shards that PyTorch cannot place.
    """
    local_shape = tuple(tensor.to_local().shape)
    coordinate = tensor.device_mesh.get_coordinate()
    order = _order_of_splits(name, tensor)
    if coordinate is None:
        return []
    indices = _indices(tensor, order, coordinate)
    expected = tuple(index.numel() for index in indices)
    # FSDP gives a shard without elements whatever shape without elements it likes.
    if local_shape != expected and math.prod(local_shape) + math.prod(expected) > 0:
        raise BadDataError(
            f'tensor "{name}": {list(tensor.shape)} placed {tensor.placements} on a mesh of '
            f"{list(tensor.device_mesh.shape)} gives rank {tuple(coordinate)} a shard of {list(expected)}, "
            f"but it has {list(local_shape)}"
        )
    runs = [_runs(index) for index in indices]
    return [Box(*zip(*combination)) if combination else Box((), (), ()) for combination in itertools.product(*runs)]


def _order_of_splits(name: str, tensor: DTensor) -> "list[Tuple[int, Placement]]":
    """(mesh dimension, placement) in the order in which they split the tensor, as PyTorch reads its own spec.

    FSDP over tensor parallelism splits by the right mesh dimension first. DTensor writes this as a _StridedShard on the
    left, or (in its spec) as a shard order. Taken from left to right a _StridedShard gives the same shards only where
    all sizes divide evenly, so it is turned back into the order that it stands for where PyTorch can do that.
    """
    placements = tuple(tensor.placements)
    for placement in placements:
        if not isinstance(placement, (EvenShard, _StridedShard, Replicate)):
            raise BadDataError(
                f'tensor "{name}" is placed {placements}: only shards and replicas are parts; redistribute it first'
            )
    splits = [(dim, p) for dim, p in enumerate(placements) if not isinstance(p, Replicate)]
    strided = any(isinstance(p, _StridedShard) for _, p in splits)
    if len({p.dim for _, p in splits}) == len(splits) and not strided:
        return splits  # each dimension is split at most once: the order does not matter
    spec = tensor._spec
    if strided and getattr(spec, "use_strided_shard_as_shard_order", True):
        try:
            plain, shard_order = spec._normalize_placements_into_shard_order(placements, tensor.device_mesh)
        except ValueError:  # no order of plain shards is the same: DTensor itself goes from left to right then
            return splits
        return [(dim, plain[dim]) for entry in shard_order for dim in entry.mesh_dims]
    return [(dim, placements[dim]) for entry in spec.shard_order for dim in entry.mesh_dims]


def _indices(
    tensor: DTensor, order: "Sequence[Tuple[int, Placement]]", coordinate: "Sequence[int]"
) -> "list[torch.Tensor]":
    """Per dimension, the indices in the whole tensor that the shard at ``coordinate`` holds, in local order."""
    with torch.device("cpu"):
        indices = [torch.arange(extent) for extent in tensor.shape]
        for mesh_dim, placement in order:
            # The split functions cut dimension `placement.dim`, so the index tensor has its indices there.
            index = indices[placement.dim].view([1] * placement.dim + [-1])
            parts = tensor.device_mesh.size(mesh_dim)
            shards, _ = placement._split_tensor(index, parts, with_padding=False, contiguous=False)
            indices[placement.dim] = shards[coordinate[mesh_dim]].reshape(-1)
    return indices


def _runs(index: torch.Tensor) -> "list[_Run]":
    """The contiguous runs of a list of rising indices."""
    count = index.numel()
    if count == 0:
        return []
    breaks = ((index[1:] - index[:-1] != 1).nonzero().view(-1) + 1).tolist()
    starts = [0, *breaks]
    ends = [*breaks, count]
    return [(start, int(index[start]), end - start) for start, end in zip(starts, ends)]
