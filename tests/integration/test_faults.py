"""Bad networks: whatever the proxy does to the connections, every run ends with the trainer's bytes in the replica."""

import pytest

from harness import free_port
from proxy import FAULTS, FaultProxy
from replicas import ToyModel

HARMFUL_TO_GRPC = ("clean", "split", "stall", "reset", "half_close", "truncate")


@pytest.mark.parametrize("seed", range(6))
def test_damaged_lanes_never_keep_a_replica_from_the_trainers_bytes(cluster, seed):
    model = ToyModel(seed, blocks=40)
    lane_port = free_port()
    with FaultProxy(f"127.0.0.1:{lane_port}", seed) as proxy:
        agent = cluster.agent(lane_listen=f"127.0.0.1:{lane_port}", lane_advertise=proxy.address)
        receivers = [cluster.receiver(agent, lanes=lanes) for lanes in (1, 4)]
        with agent.publisher(model.tensors) as publisher:
            for version in range(1, 5):
                publisher.publish(version, model.step(density=0.05))
                for receiver in receivers:
                    receiver.wait_for(model.tensors, timeout_s=60)
        assert sum(proxy.seen.values()) >= 8


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - {"clean"}))
def test_a_single_kind_of_fault_in_a_full_pull_is_survived(cluster, fault):
    model = ToyModel(blocks=40)
    lane_port = free_port()
    with FaultProxy(f"127.0.0.1:{lane_port}", 1, [fault, "clean"], reach_bytes=4 << 20) as proxy:
        agent = cluster.agent(lane_listen=f"127.0.0.1:{lane_port}", lane_advertise=proxy.address)
        with agent.publisher(model.tensors) as publisher:
            publisher.publish(1, model.step())
            cluster.receiver(agent).wait_for(model.tensors, timeout_s=60)


@pytest.mark.parametrize("seed", range(2))
def test_a_bad_control_channel_never_keeps_a_replica_from_the_trainers_bytes(cluster, seed):
    model = ToyModel(seed, blocks=8)
    agent = cluster.agent()
    with FaultProxy(agent.address, seed, HARMFUL_TO_GRPC, reach_bytes=4096) as proxy:
        receiver = cluster.receiver(proxy.address)
        with agent.publisher(model.tensors) as publisher:
            for version in range(1, 6):
                publisher.publish(version, model.step())
                receiver.wait_for(model.tensors, timeout_s=60)
