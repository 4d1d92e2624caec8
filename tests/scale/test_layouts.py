"""Models of very many tensors, end to end: what only the number of tensors costs."""

import os

import numpy as np
from fleet import published_version
from footprint import core_seconds
from harness import wait_until
from replicas import data_hash, tensors_hash

ELEMENTS = 24  # of each tensor: 5 MB for 100,000
SMALL, LARGE = 20_000, 100_000


def many(count: int) -> "dict[str, np.ndarray]":
    """Named as a mixture of experts names them."""
    random = np.random.default_rng(count)
    names = (f"model.layers.{n // 768}.mlp.experts.{n // 3 % 256}.{n % 3}_proj.weight" for n in range(count))
    return {name: random.integers(0, 1 << 16, ELEMENTS, np.uint16) for name in names}


def costs_of(count: int, model: str, agent, receiver) -> "dict[str, float]":
    """Core seconds of trainer, agent and receiver together: other programs of the machine do not count."""
    tensors = many(count)
    spent: "dict[str, float]" = {}

    def costing(name: str, work):
        processes = (os.getpid(), agent.process.pid, receiver.process.pid)
        before = [core_seconds(pid) for pid in processes]
        result = work()
        spent[name] = sum(core_seconds(pid) for pid in processes) - sum(before)
        return result

    def publish(version: int) -> None:
        publisher.publish(version=version, tensors=tensors)
        wait_until(lambda: published_version(receiver, model) == version, f"version {version} is committed")

    def verify(daemon) -> str:
        return daemon.ask("verify", model)["computed_digest"]

    with costing("open", lambda: agent.publisher(tensors, model)) as publisher:
        costing("first_version", lambda: publish(1))
        for tensor in list(tensors.values())[:: count // 100]:
            tensor[0] += 1
        costing("second_version", lambda: publish(2))
        assert costing("status", lambda: agent.model_status(model))["tensors"] == count
        digests = costing("verify", lambda: [verify(daemon) for daemon in (agent, receiver)])
        assert digests[0] == digests[1]
        assert data_hash(receiver.file(model)) == tensors_hash(tensors)
    return spent


def test_models_of_many_tensors_are_opened_followed_and_verified_at_a_cost_that_grows_with_their_number(
    cluster, record_property
):
    agent = cluster.agent()
    receiver = cluster.receiver(agent, models=("small", "large"))
    small = costs_of(SMALL, "small", agent, receiver)
    large = costs_of(LARGE, "large", agent, receiver)
    for name, seconds in large.items():
        record_property(name, seconds)
        print(f"{name}: {small[name]:.2f} core seconds for {SMALL} tensors, {seconds:.2f} for {LARGE}")
    assert large["open"] < 2 * LARGE / SMALL * small["open"]  # what costs their square would cost 5 times as much more
    assert large["status"] + large["verify"] < large["open"] / 4
