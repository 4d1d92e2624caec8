"""DTensors of every placement, on ranks: what lockstep describes of a rank, held against the memory itself."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from ranks import Rank
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from lockstep.export._parts import Box
from lockstep.export._piece import shard_of

SHAPES = [(4, 4, 4), (5, 3, 7), (1, 2, 3), (2, 1, 1), (0, 3, 2)]
CHOICES = (Replicate(), Shard(0), Shard(1), Shard(2))
# What the splitting is most often wrong for: sizes where FSDP over TP is no left-to-right reading of its placements.
ROWS = (1, 4, 7, 9, 11, 13, 19, 20, 25, 27, 29, 38)

Tensors = dict[str, tuple[DTensor, torch.Tensor]]  # name -> a DTensor, and the whole of it


class Held(NamedTuple):
    """What a rank's description of a tensor has: boxes, the number of shards, and whether the rank is in the mesh."""

    name: str
    shape: "tuple[int, ...]"
    shards: int
    boxes: "list[Box]"
    inside: bool = True


def slices(start: "tuple[int, ...]", size: "tuple[int, ...]") -> "tuple[slice, ...]":
    return tuple(slice(first, first + length) for first, length in zip(start, size))


def checked(name: str, tensor: DTensor, whole: torch.Tensor) -> Held:
    """The rank's boxes, each element of its memory in just one of them and equal to `whole`'s there."""
    local = tensor.detach().to_local()
    shard = shard_of(name, tensor, "F32", frozen=False)
    assert (shard.shape, shard.local_shape) == (tuple(whole.shape), tuple(local.shape)), name
    seen = torch.zeros(local.shape, dtype=torch.int64)
    for box in shard.boxes:
        assert all(length > 0 for length in box.size), (name, box)
        here = slices(box.local, box.size)
        assert torch.equal(local[here], whole[slices(box.whole, box.size)]), (name, tensor.placements, box)
        seen[here] += 1
    assert bool((seen == 1).all()), (name, "an element of the shard is in no box, or in two")
    return Held(name, shard.shape, shards_of(tensor), list(shard.boxes))


def shards_of(tensor: DTensor) -> int:
    sizes = tensor.device_mesh.shape
    return torch.Size(s for s, p in zip(sizes, tensor.placements) if not isinstance(p, Replicate)).numel()


def assert_covered(ranks: "Iterable[list[Held]]") -> int:
    """Over all ranks each element is held as often as the tensor has replicas; how many tensors there are."""
    tensors = list(zip(*ranks, strict=True))
    for held in tensors:
        count = torch.zeros(held[0].shape, dtype=torch.int64)
        for rank in held:
            assert rank[:3] == held[0][:3]
            for box in rank.boxes:
                count[slices(box.whole, box.size)] += 1
        replicas = sum(rank.inside for rank in held) // held[0].shards
        assert bool((count == replicas).all()), (held[0].name, count, replicas)
    return len(tensors)


# ---- tensors ---------------------------------------------------------------------------------------------------------


def every_placement(mesh: DeviceMesh) -> Tensors:
    """Each shape with each pair of placements, both on one dimension among them."""
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for shape in SHAPES:
        whole = torch.randn(shape, generator=generator)
        for first in CHOICES:
            for second in CHOICES:
                tensor = distribute_tensor(whole, mesh, [first, second], src_data_rank=None)
                tensors[f"{shape} {first} {second}"] = (tensor, whole)
    whole = torch.randn(6, 5, generator=generator).t()
    tensors["transposed"] = (distribute_tensor(whole, mesh, [Shard(0), Shard(1)], src_data_rank=None), whole)
    whole = torch.randn((), generator=generator)
    tensors["scalar"] = (distribute_tensor(whole, mesh, [Replicate(), Replicate()], src_data_rank=None), whole)
    return tensors


def fsdp_over_tensor_parallel(mesh: DeviceMesh, data: "tuple[str, ...]" = ("shard",)) -> Tensors:
    """TP splits the rows of each parameter, and then fully_shard splits each part again."""
    tensors = {}
    for rows in ROWS:
        whole = torch.arange(rows * 2, dtype=torch.float32).view(rows, 2)
        module = nn.Linear(2, rows, bias=False)
        module.weight = nn.Parameter(distribute_tensor(whole, mesh["tensor"], [Shard(0)], src_data_rank=None))
        fully_shard(module, mesh=mesh[data])
        tensors[f"rows {rows}"] = (module.weight, whole)
    return tensors


def view_of_a_shard(mesh: DeviceMesh) -> Tensors:
    """A view of two dimensions as one: its shard is several runs of rows, which no order of splits gives."""
    rows = 2 * mesh.size()
    whole = torch.arange(3.0 * rows * 2).view(3, rows, 2)
    flat = distribute_tensor(whole, mesh, [Shard(1)], src_data_rank=None).view(3 * rows, 2)
    return {"view": (flat, whole.view(3 * rows, 2))}


# ---- what ranks do ---------------------------------------------------------------------------------------------------


def check_every_placement(rank: Rank, sizes: "tuple[int, int]") -> "list[Held]":
    mesh = init_device_mesh("cpu", sizes)
    return [checked(name, *pair) for name, pair in every_placement(mesh).items()]


def check_view(rank: Rank, size: int) -> "list[Held]":
    return [checked(name, *pair) for name, pair in view_of_a_shard(init_device_mesh("cpu", (size,))).items()]


class Net(nn.Module):
    """Linear layers of given sizes."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)
        self.norm = nn.LayerNorm(dim)


def net(dim: int, hidden: int) -> Net:
    torch.manual_seed(7)
    return Net(dim, hidden)


def check_modules(rank: Rank, sizes: "tuple[int, ...]", names: "tuple[str, ...]") -> "list[Held]":
    """Modules of sizes that nothing divides, sharded by `names`; held against the same ones unsharded."""
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    held = []
    for dim, hidden in [(8, 12), (7, 5), (1, 2), (9, 3), (6, 7)]:
        module = net(dim, hidden)
        if "tensor" in names:
            parallelize_module(module, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        data = tuple(name for name in names if name != "tensor")
        for part in (module.up, module):
            fully_shard(part, mesh=mesh[data])
        whole = dict(net(dim, hidden).named_parameters())
        for name, parameter in module.named_parameters():
            held.append(checked(f"{dim}x{hidden} {name}", parameter, whole[name].detach()))
    return held


def check_last_dimension(rank: Rank, size: int) -> "list[Held]":
    """fully_shard along another dimension than the first."""
    module = net(6 * size, 12)
    mesh = init_device_mesh("cpu", (size,))
    fully_shard(module, mesh=mesh, shard_placement_fn=lambda p: Shard(p.ndim - 1) if p.ndim == 2 else None)
    whole = dict(net(6 * size, 12).named_parameters())
    return [checked(name, parameter, whole[name].detach()) for name, parameter in module.named_parameters()]


def check_part_of_the_world(rank: Rank, world: int) -> "list[Held]":
    """A mesh that lacks rank 0: that rank holds nothing, and describes that without communication."""
    mesh = DeviceMesh("cpu", list(range(1, world)))
    whole = torch.arange(10.0).view(5, 2)
    if rank.number == 0:
        shape = {"shape": torch.Size((5, 2)), "stride": (2, 1)}
        tensor = DTensor.from_local(torch.empty(0), mesh, [Shard(0)], run_check=False, **shape)
        shard = shard_of("part", tensor, "F32", frozen=False)
        assert shard.boxes == []
        return [Held("part", shard.shape, world - 1, [], inside=False)]
    return [checked("part", distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None), whole)]
