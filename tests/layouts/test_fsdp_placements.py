"""Which boxes of a DTensor a rank holds: every placement, uneven sizes, replicas, FSDP over TP, views."""

import multiprocessing
from types import SimpleNamespace

import fsdp_placements as placements
import pytest
import torch
import torch.distributed as dist
from fsdp_placements import Held, assert_covered
from harness import MODEL
from ranks import Rank, Ranks
from topologies import Topology
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.testing._internal.distributed.fake_pg import FakeStore
from trainer import stats_of

import lockstep


@pytest.fixture(params=[2, 3, 4], ids="{}-ranks".format)
def world(request):
    """How many ranks there are, and they."""
    with Ranks(Topology(dp=request.param)) as ranks:
        yield request.param, ranks


def test_every_pair_of_placements_on_every_mesh(world):
    size, ranks = world
    meshes = [(1, size), (size, 1)] + ([(2, 2)] if size == 4 else [])
    for mesh in meshes:
        assert assert_covered(ranks.call(placements.check_every_placement, mesh)) == 16 * len(placements.SHAPES) + 2


def test_modules_that_fully_shard_has_split_unevenly(world):
    size, ranks = world
    assert assert_covered(ranks.call(placements.check_modules, (size,), ("shard",))) == 30
    assert assert_covered(ranks.call(placements.check_last_dimension, size)) == 6


def test_modules_on_meshes_with_replicas_and_tensor_parallelism(world):
    size, ranks = world
    layouts = [((size, 1), ("replicate", "shard")), ((1, size), ("shard", "tensor")), ((size, 1), ("shard", "tensor"))]
    if size == 4:
        layouts += [((2, 2), ("replicate", "shard")), ((2, 2), ("shard", "tensor"))]
        layouts += [((2, 1, 2), ("replicate", "shard", "tensor")), ((1, 2, 2), ("replicate", "shard", "tensor"))]
    for sizes, names in layouts:
        assert assert_covered(ranks.call(placements.check_modules, sizes, names)) == 30, names


def test_a_view_that_no_order_of_splits_gives_has_several_boxes(world):
    size, ranks = world
    held = ranks.call(placements.check_view, size)
    assert_covered(held)
    assert [len(rank[0].boxes) for rank in held] == [3] * size


def test_a_mesh_of_some_ranks_only(world):
    size, ranks = world
    assert assert_covered(ranks.call(placements.check_part_of_the_world, size)) == 1


# ---- larger meshes, over PyTorch's backend without communication -----------------------------------------------------

LARGE = [(3, 2), (4, 2), (3, 3), (4, 4), (2, 3, 2)]


def held_without_others(sizes: "tuple[int, ...]", number: int) -> "list[Held]":
    """What one rank of a large mesh holds, in a process of its own."""
    world = torch.Size(sizes).numel()
    dist.init_process_group("fake", store=FakeStore(), rank=number, world_size=world)
    names = ("replicate", "shard", "tensor")[-len(sizes) :]
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    tensors = placements.fsdp_over_tensor_parallel(mesh, names[:-1])
    return [placements.checked(name, *pair) for name, pair in tensors.items()]


def test_fsdp_over_tensor_parallelism_where_left_to_right_is_wrong():
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as processes:
        for sizes in LARGE:
            everyone = [(sizes, number) for number in range(torch.Size(sizes).numel())]
            held = processes.starmap(held_without_others, everyone, chunksize=1)
            assert assert_covered(held) == len(placements.ROWS)


# ---- through the exporter --------------------------------------------------------------------------------------------


def publish_all(rank: Rank, socket, kind: str, sizes: "tuple[int, int]") -> "tuple[dict, SimpleNamespace]":
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("shard", "tensor"))
    pairs = getattr(placements, kind)(mesh)
    pairs["plain"] = (torch.arange(7), torch.arange(7))
    tensors = {name: tensor for name, (tensor, _) in pairs.items()}
    with lockstep.Publisher.from_tensors(tensors, socket=socket, model=MODEL) as exporter:
        exporter.publish(version=1)
        return {name: whole for name, (_, whole) in pairs.items()}, stats_of(exporter)


@pytest.mark.parametrize("kind, sizes", [("every_placement", (2, 2)), ("fsdp_over_tensor_parallel", (3, 2))])
def test_a_receiver_holds_tensors_of_every_placement(cluster, kind, sizes):
    agent = cluster.agent(block_bytes=4096)
    receiver = cluster.receiver(agent)
    with Ranks(Topology(dp=torch.Size(sizes).numel())) as ranks:
        answers = ranks.call(publish_all, agent.socket, kind, sizes)
        tensors = answers[0][0]
        receiver.wait_for(tensors)
    assert sum(stats.bytes_copied for _, stats in answers) == sum(tensor.nbytes for tensor in tensors.values())


# ---- what is refused -------------------------------------------------------------------------------------------------


def refusals(rank: Rank) -> "list[str]":
    mesh = init_device_mesh("cpu", (1, 2))
    partial = DTensor.from_local(torch.ones(2, 2), mesh, [Replicate(), Partial()])
    wrong = DTensor.from_local(torch.ones(3, 2), mesh, [Replicate(), Replicate()], run_check=False)
    wrong._local_tensor = torch.ones(2, 2)
    flat = torch.nn.Module()
    flat._flat_param = torch.nn.Parameter(torch.ones(4))
    sentences = []
    for part in (
        lambda: lockstep.named_tensors({"summed": partial}),
        lambda: lockstep.named_tensors({"short": wrong}),
        lambda: lockstep.fsdp(flat),
        lambda: lockstep.named_tensors({"w": torch.ones(2)}, frozen="all"),
    ):
        with pytest.raises(lockstep.BadDataError) as raised:
            part().describe()
        sentences.append(str(raised.value))
    return sentences


def test_what_is_no_part_of_a_tensor_is_refused_by_name():
    with Ranks(Topology(dp=2)) as ranks:
        for summed, short, flat, frozen in ranks.call(refusals):
            assert '"summed"' in summed and "only shards and replicas" in summed
            assert '"short"' in short and "[3, 2]" in short and "[2, 2]" in short
            assert '"_flat_param"' in flat and "FSDP2" in flat
            assert 'frozen="all"' in frozen and "requires_grad" in frozen
