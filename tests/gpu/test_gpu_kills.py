"""Processes that use a GPU are killed at any moment: a replica and a module have a whole version, or none, and the next one."""

import random
import re
import time

import pytest
import torch
from gpu_models import DTYPES, Weights, agent_with_receiver, exporter, follower, module, twin_of, unlike
from gpu_ranks import publish, publish_on, train
from harness import wait_until
from ranks import Ranks
from replicas import differing_tensor

import lockstep

TRAINERS = 3  # in each test, one after another
ROUNDS = 6
LONGEST_S = 0.3  # from the first version, or a publish, to a kill


def newest(agent) -> int:
    return agent.model_status()["newest_version"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_trainer_is_killed_while_it_publishes(cluster, dtype):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    when = random.Random(3)
    with Ranks(TRAINERS, start="spawn", timeout_s=90) as trainers:
        for number in range(TRAINERS):
            trainers.call(train, agent.socket, dtype, only=[number])
            trainers.call(publish, 1, only=[number])
            run = agent.model_status()["run"]
            trainers.start(publish_on, 2, only=[number])
            time.sleep(when.random() * LONGEST_S)
            trainers.kill(number)
            version = wait_until(lambda run=run: settled(agent, receiver, run), "the receiver has what is served")
            found = re.match(r"v(\d+)", receiver.published().resolve().name)
            assert found and int(found[1]) == version
            assert differing_tensor(receiver.file(), twin_of(Weights(dtype, "cpu"), version).published()) is None


def settled(agent, receiver, run) -> int:
    """The version of this run that agent and receiver both have, and keep for a while; 0: not yet."""
    first = agent.model_status()
    if receiver.model_status()["held"]["version"] != first["newest_version"] or first["run"] != run:
        return 0
    time.sleep(0.3)
    return first["newest_version"] if newest(agent) == first["newest_version"] else 0


def test_a_receiver_is_killed_while_a_module_is_written(cluster):
    agent, receiver, socket = agent_with_receiver(cluster)
    weights = Weights(torch.bfloat16)
    engine, when = module(weights), random.Random(4)
    kept = {}
    with exporter(agent.socket, weights) as trainer, follower(engine, socket) as follows:
        for version in range(1, ROUNDS + 1):
            weights.step()
            kept[version] = weights.published()
            trainer.publish(version=version)
            if version == 1:
                follows.wait_for(1, timeout=60)
                continue
            time.sleep(when.random() * LONGEST_S / 2)
            receiver.kill()
            try:
                with follows.serving(timeout=0) as served:
                    assert served.version in (version - 1, version)
                    assert unlike(engine.state_dict(), kept[served.version]) == []
            except lockstep.DeadlineError:
                pass  # held: nothing may read it
            receiver.start()
            follows.wait_for(version, timeout=60)
            with follows.serving(timeout=60):
                assert unlike(engine.state_dict(), kept[version]) == [], f"version {version}"
