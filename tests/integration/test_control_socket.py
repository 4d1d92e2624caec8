"""The control plane of one host: on unix sockets, for the daemon's own user and root; TCP only when asked for."""

import os
import subprocess

import pytest
from harness import LOCKSTEPCTL
from replicas import ToyModel


def listening_tcp_ports(pid: int) -> "set[int]":
    """Of one process, by its descriptors."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        target = os.readlink(f"/proc/{pid}/fd/{fd}")
        inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    ports = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}") as lines:
            for fields in (line.split() for line in list(lines)[1:]):
                if fields[3] == "0A" and fields[9] in inodes:
                    ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def test_a_host_needs_no_control_plane_on_tcp(cluster):
    model = ToyModel(blocks=8)
    agent = cluster.agent(listen="")
    receiver = cluster.receiver(agent, listen="")
    assert all(daemon.address.startswith("unix:") for daemon in (agent, receiver))
    with agent.publisher(model.tensors) as publisher:
        for version in range(1, 4):
            publisher.publish(version, model.step())
            receiver.wait_for(model.tensors)
    assert receiver.ctl("verify").returncode == 0
    assert receiver.ctl("rollback").returncode == 0
    assert agent.ask("status")["models"][0]["receivers"][0]["receiver"] == receiver.name
    lanes = int(agent.addresses["lanes"].rpartition(":")[2])
    assert listening_tcp_ports(agent.process.pid) == {lanes}
    assert listening_tcp_ports(receiver.process.pid) == set()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_other_users_do_not_reach_the_control_plane(cluster):
    agent = cluster.agent(listen="")
    path = agent.addresses["control"]
    for directory in (cluster.directory, agent.segment_dir.parent):
        directory.chmod(0o755)
    os.chmod(path, 0o666)
    ask = [str(LOCKSTEPCTL), "--agent", f"unix:{path}", "--timeout", "5000", "status"]
    for _ in range(3):
        other = subprocess.run(["setpriv", "--reuid", "65534", "--clear-groups", *ask], capture_output=True)
        assert other.returncode != 0
    assert agent.log().count("control_peer_refused") == 1  # in a minute
    assert "uid 65534 may not call a daemon" in agent.log()
    assert subprocess.run(ask, capture_output=True).returncode == 0


def test_a_socket_that_somebody_serves_is_not_taken_over(cluster):
    agent = cluster.agent()
    receiver = cluster.receiver(agent, start=False, control_socket=agent.addresses["control"])
    result = subprocess.run(receiver.command, capture_output=True, text=True, timeout=60)
    assert (
        result.returncode == 69 and f"another process already listens at {agent.addresses['control']}" in result.stderr
    )
