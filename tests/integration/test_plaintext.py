"""Plaintext beyond loopback: in the networks that --allow-insecure-network names, and counted there."""

import os
import subprocess

import pytest
from harness import MODEL, wait_until
from replicas import ToyModel

HOST, ELSEWHERE = "198.51.100.7", "203.0.113.9"  # both of a host of its own
NETWORK, OTHER = "198.51.100.0/24", "203.0.113.0/24"
CONFIG = 78


@pytest.fixture
def host():
    """A prefix that runs a command in a network namespace of its own, with the addresses HOST and ELSEWHERE."""
    if os.geteuid() != 0:
        pytest.skip("needs root, for a network of its own")
    up = f"ip link set lo up && ip addr add {HOST}/32 dev lo && ip addr add {ELSEWHERE}/32 dev lo"
    command = ["unshare", "--net", "sh", "-c", f"{up} && echo up && exec sleep infinity"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "up\n"
            yield ["nsenter", f"--net=/proc/{process.pid}/ns/net", "--"]
        finally:
            process.kill()


def agent_on(cluster, host, **options):
    agent = cluster.agent(
        start=False, listen="0.0.0.0:7700", lane_listen="0.0.0.0:7701", local_socket="none", **options
    )
    agent.prefix = host
    agent.start()
    agent.address = f"{HOST}:7700"
    return agent


def receiver_on(cluster, host, agent, **options):
    receiver = cluster.receiver(agent.address, start=False, listen="", **options)
    receiver.prefix = host
    return receiver


def test_what_comes_in_plaintext_is_counted(cluster, host):
    model = ToyModel(blocks=8)
    agent = agent_on(cluster, host, allow_insecure_network=["fd00::/8", NETWORK])
    receiver = receiver_on(cluster, host, agent, allow_insecure_network=NETWORK)
    receiver.start()
    with agent.publisher(model.tensors) as publisher, receiver.recorded_syncs() as syncs:
        for version in range(1, 4):
            model.reach(publisher, version, receiver)
    assert all(0 < sync["plain_bytes"] == sync["payload_bytes"] for sync in syncs)
    assert receiver.model_status(MODEL)["plain_bytes"] == sum(sync["plain_bytes"] for sync in syncs)


def test_a_receiver_takes_nothing_in_plaintext_from_a_network_that_it_was_not_told(cluster, host):
    agent = agent_on(cluster, host, allow_insecure_network=[NETWORK, OTHER], lane_advertise=f"{ELSEWHERE}:7701")
    for options in ({}, {"allow_insecure_network": OTHER}):
        told = subprocess.run(
            receiver_on(cluster, host, agent, **options).command, capture_output=True, text=True, timeout=60
        )
        assert told.returncode == CONFIG
        assert f"{HOST}:7700 is beyond loopback" in told.stderr and "--allow-insecure-network CIDR" in told.stderr
    model = ToyModel(blocks=8)
    receiver = receiver_on(cluster, host, agent, allow_insecure_network=NETWORK)
    receiver.start()
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.step())
        refusal = f"the agent's lane port is at {ELSEWHERE}, which is of no network"
        wait_until(lambda: refusal in receiver.model_status(MODEL)["last_error"], "lanes elsewhere are refused")
    assert receiver.model_status(MODEL)["held"]["version"] == 0


def test_an_agent_lets_no_peer_in_from_a_network_that_it_was_not_told(cluster, host):
    agent = agent_on(cluster, host, allow_insecure_network=OTHER)
    receiver = receiver_on(cluster, host, agent, allow_insecure_network=NETWORK)
    receiver.start()
    wait_until(lambda: f"{HOST} is of no network" in agent.log(), "the agent names the refused peer")
    assert receiver.model_status(MODEL)["held"]["version"] == 0
    dialog = f"import socket; s = socket.create_connection(('{HOST}', 7701)); print(len(s.recv(1)))"
    heard = subprocess.run([*host, "python3", "-c", dialog], capture_output=True, text=True, timeout=60)
    assert heard.stdout == "0\n"
    assert agent.log().count('"event":"connection_refused"') == 2  # at the control plane and at the lanes


@pytest.mark.parametrize(
    ("network", "why"),
    [
        ("true", "'true' does not name a network"),
        ("0.0.0.0/0", "'0.0.0.0/0' does not name a network"),
        ("10.1.2.3/8", "'10.1.2.3/8' does not name a network"),
        ("10.0.0.0/33", "'10.0.0.0/33' does not name a network"),
        ("::/0", "'::/0' does not name a network"),
    ],
)
def test_a_network_is_named_by_its_prefix(cluster, network, why):
    agent = cluster.agent(start=False, allow_insecure_network=network)
    told = subprocess.run(agent.command, capture_output=True, text=True, timeout=60)
    assert told.returncode == CONFIG and f"--allow-insecure-network: {why}" in told.stderr
