"""lockstep.Publisher: how it is made, how it numbers versions, and what it says to users of other names."""

import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist
from harness import MODEL
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import lockstep


@pytest.fixture
def agent(cluster):
    return cluster.agent()


@pytest.fixture
def two_ranks():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.fixture
def tensors():
    return {"a": np.arange(6, dtype=np.float32), "b": np.ones((3, 2), np.float16)}


def open_tensors(tensors, **options):
    return lockstep.Publisher.from_tensors(tensors, **options), {}


def open_stream(tensors, **options):
    return lockstep.Publisher.from_stream(tensors, **options), {"tensors": tensors}


def open_in_place(tensors, **options):
    return lockstep.Publisher.in_place(tensors, **options), {"tensors": tensors}


ALL = pytest.mark.parametrize("open_for", [open_tensors, open_stream, open_in_place])


@ALL
def test_versions_number_themselves_and_no_number_is_tried_twice(agent, tensors, open_for):
    publisher, given = open_for(tensors, model=MODEL, socket=agent.socket)
    with publisher:
        assert [publisher.publish(step, **given).version for step in (10, 20)] == [1, 2]
        assert publisher.publish(version=7, **given).label == ""
        tensors["a"] = np.zeros(5, np.float32)  # of another shape
        with pytest.raises(lockstep.BadDataError, match="a"):
            if open_for is open_tensors:
                publisher.publish(tensors={})
            else:
                publisher.publish(30, tensors=tensors)
        tensors["a"] = np.zeros(6, np.float32)
        assert publisher.publish(30, **given).version > 7
        run, newest = publisher.run, publisher.committed_version
        assert agent.model_status()["newest_label"] == "30"
    with pytest.raises(lockstep.NotFoundError, match=f"does not know run {'ab' * 16}; of this model it holds {run}"):
        open_for(tensors, model=MODEL, socket=agent.socket, run="ab" * 16)
    publisher, given = open_for(tensors, model=MODEL, socket=agent.socket, run=run)
    with publisher:
        assert publisher.publish(40, **given).version == newest + 1


@ALL
def test_what_a_publisher_is_not_for_is_said(agent, tensors, open_for):
    publisher, given = open_for(tensors, model=MODEL, socket=agent.socket)
    with publisher:
        assert [meta.name for meta, _ in publisher.layout] == ["a", "b"] and publisher.writes
        with pytest.raises(lockstep.BadDataError, match="tensors"):
            publisher.publish(1, **({} if given else {"tensors": tensors}))
        if open_for is open_tensors:
            assert publisher.plan_digest
        else:
            with pytest.raises(lockstep.StateError, match="has no plan"):
                publisher.write_descriptions("/nowhere")
        if open_for is not open_in_place:
            with pytest.raises(lockstep.StateError, match="Publisher.in_place"):
                publisher.begin()


def test_a_begin_that_is_refused_leaves_the_version_that_is_being_written(agent, tensors):
    with agent.publisher(tensors) as publisher:
        publisher.begin(5)
        with pytest.raises(lockstep.StateError, match="version 5 is still being written"):
            publisher.begin(6)
        for name, tensor in tensors.items():
            publisher.write(name, tensor)
        assert publisher.commit().version == publisher.committed_version == 5


def test_a_publisher_that_is_called_like_a_class_names_what_makes_one():
    with pytest.raises(TypeError, match="is made by .* or in_place"):
        lockstep.Publisher("/nowhere.sock", MODEL, {})


def test_a_module_that_is_sharded_is_refused_by_name_where_it_should_be_whole(agent, two_ranks):
    module = torch.nn.Linear(4, 2)
    mesh = init_device_mesh("cpu", (2,))
    module.weight = torch.nn.Parameter(distribute_tensor(module.weight.detach(), mesh, [Shard(0)]))
    with pytest.raises(lockstep.BadDataError, match='tensor "weight": it is a DTensor; .*from_fsdp'):
        lockstep.Publisher.from_module(module, model=MODEL, socket=agent.socket)


def test_an_agent_that_starts_later_is_waited_for_and_one_that_does_not_is_named(cluster, tensors):
    late = cluster.agent(start=False)
    with pytest.raises(lockstep.UnavailableError, match=f"no agent's socket {late.socket} .*LOCKSTEP_EXPORT_SOCKET"):
        lockstep.Publisher.from_tensors(tensors, model=MODEL, socket=late.socket, connect_timeout=0.2)
    starting = threading.Timer(0.5, late.start)
    starting.start()
    with lockstep.Publisher.from_tensors(tensors, model=MODEL, socket=late.socket, connect_timeout=60) as publisher:
        assert publisher.publish() and publisher.writes
    starting.join()


def test_several_writers_must_be_given_the_number(agent, tensors):
    """One that missed a version would put its part under the number of another one."""
    options = {"model": MODEL, "socket": agent.socket}
    in_place, from_stream = lockstep.Publisher.in_place, lockstep.Publisher.from_stream
    for made, how in ((in_place, {"ranks": 2, "owns": ["a"]}), (from_stream, {"writers": 2})):
        with (
            made(tensors, **how, **options) as publisher,
            pytest.raises(lockstep.BadDataError, match="version: several writers .* give its number"),
        ):
            publisher.publish(1, tensors=tensors)
    with lockstep.Publisher.from_stream(tensors, rank=1, **options) as idle:
        assert idle.publish(1, tensors=iter(())).version == 0


def test_a_publisher_that_was_made_alone_stays_alone(agent, tensors, request):
    with lockstep.Publisher.from_tensors(tensors, model=MODEL, socket=agent.socket) as publisher:
        request.getfixturevalue("two_ranks")  # of a group that is there from now on
        assert publisher.publish(1).version == 1
