"""Bad networks: whatever the proxy does to the connections, every run ends with the trainer's bytes in the replica."""

import time

import pytest
from harness import wait_until
from ports import ReservedPort
from proxy import FAULTS, FaultProxy
from replicas import ToyModel

LANE_SILENCE_S = 30  # then a lane is abandoned: a wait for one is as long
HARMFUL_TO_GRPC = ("clean", "split", "stall", "reset", "half_close", "truncate")


@pytest.mark.parametrize("seed", range(6))
def test_damaged_lanes_never_keep_a_replica_from_the_trainers_bytes(cluster, seed):
    model = ToyModel(seed, blocks=40)
    lanes = ReservedPort()
    with FaultProxy(lanes.address, seed) as proxy:
        agent = cluster.agent(lane_listen=lanes.address, lane_advertise=proxy.address)
        receivers = [cluster.receiver(agent, lanes=lanes) for lanes in (1, 4)]
        with agent.publisher(model.tensors) as publisher:
            for version in range(1, 5):
                publisher.publish(version=version, tensors=model.step(density=0.05))
                for receiver in receivers:
                    receiver.wait_for(model.tensors, timeout_s=60)
        assert sum(proxy.seen.values()) >= 8


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - {"clean"}))
def test_a_single_kind_of_fault_in_a_full_pull_is_survived(cluster, fault):
    model = ToyModel(blocks=40)
    lanes = ReservedPort()
    with FaultProxy(lanes.address, 1, [fault, "clean"], reach_bytes=4 << 20) as proxy:
        agent = cluster.agent(lane_listen=lanes.address, lane_advertise=proxy.address)
        with agent.publisher(model.tensors) as publisher:
            publisher.publish(version=1, tensors=model.step())
            cluster.receiver(agent).wait_for(model.tensors, timeout_s=60)


@pytest.mark.parametrize("seed", range(2))
def test_a_bad_control_channel_never_keeps_a_replica_from_the_trainers_bytes(cluster, seed):
    model = ToyModel(seed, blocks=8)
    agent = cluster.agent()
    with FaultProxy(agent.address, seed, HARMFUL_TO_GRPC, reach_bytes=4096) as proxy:
        receiver = cluster.receiver(proxy.address)
        with agent.publisher(model.tensors) as publisher:
            for version in range(1, 6):
                publisher.publish(version=version, tensors=model.step())
                receiver.wait_for(model.tensors, timeout_s=60)


def test_receivers_that_hang_make_no_trainer_wait_and_no_agent_fail_to_drain(cluster):
    model = ToyModel(blocks=40)
    lanes = ReservedPort()
    with FaultProxy(lanes.address, 1, ["hang"], reach_bytes=100_000) as proxy:
        agent = cluster.agent(lane_listen=lanes.address, lane_advertise=proxy.address, drain_timeout="1s")
        for _ in range(3):
            cluster.receiver(agent)
        with agent.publisher(model.tensors, reconnect_timeout=0.3) as publisher:
            publisher.publish(version=1, tensors=model.step())
            wait_until(lambda: sum(proxy.seen.values()) >= 3, "the receivers pull")
            started = time.monotonic()
            for version in range(2, 30):
                publisher.publish(version=version, tensors=model.step())
            assert time.monotonic() - started < LANE_SILENCE_S
            assert agent.stop() == 0


def test_a_full_pull_overtaken_by_many_versions_ends_with_a_whole_one(cluster):
    model = ToyModel(blocks=200)  # more than the sockets on the way can hold
    lanes = ReservedPort()
    with FaultProxy(lanes.address, 1, ["gate"]) as proxy:
        agent = cluster.agent(lane_listen=lanes.address, lane_advertise=proxy.address)
        with agent.publisher(model.tensors) as publisher:
            publisher.publish(version=1, tensors=model.step())
            receiver = cluster.receiver(agent, lanes=2)
            with receiver.recorded_syncs() as syncs:
                wait_until(lambda: proxy.seen, "the pull has begun")
                for version in range(2, 8):
                    publisher.publish(version=version, tensors=model.step())
                proxy.gate.set()
                receiver.wait_for(model.tensors)
    assert syncs[0]["mode"] == "full" and syncs[0]["to"]["version"] > 1
    assert all(sync["verified"] for sync in syncs)
