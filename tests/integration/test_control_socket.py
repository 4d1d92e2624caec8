"""The control plane of one host: on unix sockets, for the daemon's own user and root; TCP only when asked for."""

import os
import subprocess
import sys

import pytest
from harness import LOCKSTEPCTL, MODEL, wait_until
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
            model.reach(publisher, version, receiver)
    assert receiver.ctl("verify").returncode == 0
    assert receiver.ctl("rollback").returncode == 0
    assert agent.ask("status")["models"][0]["receivers"][0]["receiver"] == receiver.name
    lanes = int(agent.addresses["lanes"].rpartition(":")[2])
    assert listening_tcp_ports(agent.process.pid) == {lanes}
    assert listening_tcp_ports(receiver.process.pid) == set()


def test_a_command_over_a_socket_prints_its_answer_and_nothing_on_stderr(cluster):
    model = ToyModel(blocks=1)
    agent = cluster.agent(listen="")
    receiver = cluster.receiver(agent, listen="")
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, receiver)
    for daemon, commands in ((agent, ["status", "versions", "verify"]), (receiver, ["status", "pull", "verify"])):
        for command in commands:
            asked = daemon.ctl(command)
            assert asked.stdout and (asked.returncode, asked.stderr) == (0, ""), command


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_other_users_do_not_reach_the_control_plane(cluster):
    agent = cluster.agent(listen="")
    path = agent.addresses["control"]
    for directory in (cluster.directory, agent.segment_dir.parent):
        directory.chmod(0o755)
    os.chmod(path, 0o666)
    ask = [str(LOCKSTEPCTL), "--agent", f"unix:{path}", "--timeout", "5s", "status"]
    for _ in range(3):
        other = subprocess.run(["setpriv", "--reuid", "65534", "--clear-groups", *ask], capture_output=True)
        assert other.returncode != 0
    assert agent.log().count("control_peer_refused") == 1  # in a minute
    assert "uid 65534 may not call a daemon" in agent.log()
    assert subprocess.run(ask, capture_output=True).returncode == 0


IMPOSTOR = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o666)
listener.listen()
while True:
    heard = listener.accept()[0].recv(1)
    print(len(heard), flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_an_impostor_at_a_daemons_socket_is_told_nothing(cluster):
    """Nor after the daemon was there: neither by a receiver that comes back, nor by lockstepctl."""
    model = ToyModel(blocks=8)
    agent = cluster.agent(listen="")
    receiver = cluster.receiver(agent, listen="")
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, receiver)
    agent.kill()
    path = agent.addresses["control"]
    os.unlink(path)
    cluster.directory.chmod(0o755)
    os.chmod(os.path.dirname(path), 0o777)
    command = ["setpriv", "--reuid", "65534", "--clear-groups", sys.executable, "-c", IMPOSTOR, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as impostor:
        refusal = f"uid 65534 listens at {path}, and may be an impostor"
        wait_until(lambda: refusal in receiver.model_status(MODEL)["last_error"], "the receiver sees which user it is")
        ask = [str(LOCKSTEPCTL), "--agent", f"unix:{path}", "status"]
        asked = subprocess.run(ask, capture_output=True, text=True, timeout=60)
        assert asked.returncode == 77 and refusal in asked.stderr
        heard = [impostor.stdout.readline().strip() for _ in range(2)]  # it may be slower than those that ask
        impostor.kill()
        assert {*heard, *impostor.stdout.read().split()} == {"0"}
    os.unlink(path)
    os.chmod(os.path.dirname(path), 0o700)
    agent.start()
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 2, receiver)
