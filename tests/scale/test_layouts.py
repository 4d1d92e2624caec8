"""Models of very many tensors, end to end: what only the number of tensors costs."""

import os

import numpy as np
import pytest

from fleet import published_version
from footprint import core_seconds
from harness import wait_until
from replicas import data_hash, tensors_hash

ELEMENTS = 24  # of each tensor: 5 MB for 100,000


def many(count: int) -> "dict[str, np.ndarray]":
    """Named as a mixture of experts names them."""
    random = np.random.default_rng(count)
    names = (f"model.layers.{n // 768}.mlp.experts.{n // 3 % 256}.{n % 3}_proj.weight" for n in range(count))
    return {name: random.integers(0, 1 << 16, ELEMENTS, np.uint16) for name in names}


# Core seconds of trainer, agent and receiver together: other programs of the machine do not count.
@pytest.mark.parametrize("count, open_bound_s", [(20_000, 0.6), (100_000, 3.0)])
def test_a_model_of_many_tensors_is_opened_followed_and_verified(cluster, record_property, count, open_bound_s):
    tensors = many(count)
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    spent = {}

    def costing(name: str, work):
        processes = (os.getpid(), agent.process.pid, receiver.process.pid)
        before = [core_seconds(pid) for pid in processes]
        result = work()
        spent[name] = sum(core_seconds(pid) for pid in processes) - sum(before)
        return result

    def publish(version: int) -> None:
        publisher.publish(version, tensors)
        wait_until(lambda: published_version(receiver) == version, f"version {version} is taken")

    with costing("open", lambda: agent.publisher(tensors)) as publisher:
        costing("first_version", lambda: publish(1))
        for tensor in list(tensors.values())[:: count // 100]:
            tensor[0] += 1
        costing("second_version", lambda: publish(2))
        assert costing("status", agent.model_status)["tensors"] == count
        digests = costing("verify", lambda: [daemon.ask("verify")["computed_digest"] for daemon in (agent, receiver)])
        assert digests[0] == digests[1]
        assert data_hash(receiver.file()) == tensors_hash(tensors)
    for name, seconds in spent.items():
        record_property(name, seconds)
        print(f"{count} tensors: {name} = {seconds:.2f} core seconds")
    assert spent["open"] < open_bound_s
    assert spent["status"] + spent["verify"] < 0.2
