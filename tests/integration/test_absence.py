"""An agent that is away while a trainer trains on."""

import time

import pytest
from harness import MODEL, wait_until
from rank_process import RankProcess, content
from replicas import ToyModel

import lockstep

PATIENCE = 0.5


def publisher_of(agent, tensors, **options):
    publisher = lockstep.Publisher.in_place(
        tensors, model=MODEL, socket=agent.socket, reconnect_timeout=PATIENCE, **options
    )
    return publisher, lambda version: publisher.publish(version=version, tensors=tensors)


def exporter_of(agent, tensors, **options):
    options |= {"socket": agent.socket, "model": MODEL, "reconnect_timeout": PATIENCE}
    exporter = lockstep.Publisher.from_tensors(tensors, **options)
    return exporter, exporter.publish


BOTH = pytest.mark.parametrize("open_for", [publisher_of, exporter_of])


@BOTH
def test_versions_are_skipped_while_the_agent_is_away_and_receivers_catch_up(cluster, open_for):
    model = ToyModel()
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    handle, publish = open_for(agent, model.tensors, skip_while_away=True)
    with handle:
        assert publish(1)
        receiver.wait_for(model.tensors)
        run = handle.run
        agent.kill()
        with pytest.warns(RuntimeWarning, match="skipped until the agent is back.*export.sock"):
            assert publish(2).skipped
        start = time.monotonic()
        for version in range(3, 103):
            model.step()
            assert not publish(version)
        assert time.monotonic() - start < 100 * PATIENCE / 4  # nothing waited for each
        agent.start()
        assert publish(103)
        receiver.wait_for(model.tensors)
        assert (handle.run, handle.committed_version) == (run, 103)
    with pytest.raises(lockstep.StateError, match="is closed"):
        publish(104)


def test_the_errors_of_an_agent_that_was_away_are_over_when_it_is_back(cluster):
    model = ToyModel(blocks=1)
    agent = cluster.agent(start=False)
    receiver = cluster.receiver(f"unix:{agent.socket.parent / 'control.sock'}")

    def error() -> str:
        return receiver.model_status()["last_error"]

    wait_until(lambda: "nothing listens at" in error(), "the agent is not there")
    agent.start()
    wait_until(lambda: "no trainer has opened it" in error(), "it is there, and lacks a trainer")
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, receiver)
        wait_until(lambda: error() == "", "there is a trainer, and a version")
        agent.kill()
        wait_until(lambda: "nothing listens at" in receiver.ctl("pull").stderr, "a pull fails")
        assert error() != ""
        agent.start()
        wait_until(lambda: error() == "", "the pull that failed is not needed any more")


@BOTH
def test_without_that_choice_each_version_fails_after_the_patience_and_the_next_works(cluster, open_for):
    model = ToyModel()
    agent = cluster.agent()
    handle, publish = open_for(agent, model.tensors)
    with handle:
        publish(1)
        agent.kill()
        for version in (2, 3):
            with pytest.raises(lockstep.UnavailableError, match="lost the agent"):
                publish(version)
        agent.start()
        publish(4)
        cluster.receiver(agent).wait_for(model.tensors)


def test_a_version_that_one_rank_skipped_is_gone_for_all_and_the_next_is_whole(cluster):
    shapes = {"a": [100], "b": [100]}
    metas = [lockstep.TensorMeta(name, "F32", tuple(shape)) for name, shape in shapes.items()]
    agent = cluster.agent()
    options = {"rank": 0, "ranks": 2, "owns": ["a"], "reconnect_timeout": PATIENCE, "skip_while_away": True}

    def part(version: int) -> dict:
        return {"a": content("a", version, shapes["a"])}

    with (
        lockstep.Publisher.in_place(metas, model=MODEL, socket=agent.socket, **options) as publisher,
        RankProcess(agent.socket, MODEL, shapes, 1, 2, ["b"]) as patient,
    ):
        patient.write(1, ["b"], 1)
        assert publisher.publish(version=1, tensors=part(1))
        patient.call("commit")
        agent.kill()
        with pytest.warns(RuntimeWarning, match="skipped"):
            assert not publisher.publish(version=2, tensors=part(2))
        agent.start()
        patient.write(2, ["b"], 2)
        assert publisher.publish(version=3, tensors=part(3))
        with pytest.raises(lockstep.AbortedError, match="rank 0 went on to version 3 without version 2"):
            patient.call("commit")
        patient.write(3, ["b"], 3)
        patient.call("commit")
        agent.wait_for(3)
        cluster.receiver(agent).wait_for({name: content(name, 3, shapes[name]) for name in shapes})
