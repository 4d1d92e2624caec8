"""Calls to a daemon that answers late, or not at all."""

import os
import signal
import socket
import subprocess
import tempfile
import threading
import time

import numpy as np
import pytest
from harness import LOCKSTEPCTL, MODEL, wait_until
from ports import ReservedPort
from proxy import DelayProxy
from replicas import ToyModel

import lockstep

UNAVAILABLE, TRY_AGAIN, PROTOCOL = 69, 75, 76


def status_of(address: str, timeout_ms: int, flag: str = "--agent") -> subprocess.CompletedProcess:
    command = [LOCKSTEPCTL, flag, address, "--timeout", f"{timeout_ms}ms", "status"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_receivers_and_lockstepctl_reach_an_agent_over_a_long_link(cluster):
    model = ToyModel(blocks=4)
    agent = cluster.agent()
    with DelayProxy(agent.address, 0.3) as link, agent.publisher(model.tensors) as publisher:
        receiver = cluster.receiver(link.address)
        for version in (1, 2):
            model.reach(publisher, version, receiver)
        result = status_of(link.address, timeout_ms=60_000)
        assert result.returncode == 0, result.stderr


def test_a_call_waits_for_a_daemon_that_stands_still_for_a_second(cluster):
    agent = cluster.agent()
    agent.signal(signal.SIGSTOP)
    resuming = threading.Timer(1.0, agent.signal, [signal.SIGCONT])
    resuming.start()
    result = status_of(agent.address, timeout_ms=60_000)
    resuming.join()
    assert result.returncode == 0, result.stderr


def test_a_call_to_a_silent_daemon_ends_at_its_own_deadline(cluster):
    agent = cluster.agent()
    agent.signal(signal.SIGSTOP)
    began = time.monotonic()
    result = status_of(agent.address, timeout_ms=1500)
    assert result.returncode == TRY_AGAIN and time.monotonic() - began >= 1.5, result.stderr
    assert f"waiting for trainer_agent {agent.address}" in result.stderr


def test_a_call_where_no_daemon_listens_does_not_wait_for_its_deadline():
    with ReservedPort() as unused:
        began = time.monotonic()
        result = status_of(unused.address, timeout_ms=60_000)
    assert result.returncode == UNAVAILABLE and time.monotonic() - began < 30
    assert unused.address in result.stderr


def test_the_other_kind_of_daemon_is_named_with_the_flag_for_it(cluster):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    for address, flag, other in [
        (receiver.address, "--agent", "raas_receiver answers there; its address is given as --receiver"),
        (agent.address, "--receiver", "trainer_agent answers there; its address is given as --agent"),
    ]:
        result = status_of(address, timeout_ms=60_000, flag=flag)
        assert result.returncode == PROTOCOL and f"{other} {address}" in result.stderr


def test_a_receiver_that_follows_a_receiver_says_so(cluster):
    first = cluster.receiver("127.0.0.1:1")
    second = cluster.receiver(first.address)
    error = wait_until(lambda: second.model_status(MODEL)["last_error"], "the wrong daemon is reported")
    assert f"{first.address} is the address of a raas_receiver" in error and "--agent" in error


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_trainer_says_nothing_to_an_impostor_at_the_agents_path():
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o777)
        path = f"{directory}/export.sock"
        impostor = os.fork()
        if impostor == 0:
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(path)
                listener.listen()
                os._exit(0 if listener.accept()[0].recv(1) == b"" else 1)
        with pytest.raises(lockstep.PermissionDeniedError, match="uid 65534 listens at .* impostor"):
            lockstep.Publisher.in_place({"weight": np.zeros(1000, np.float32)}, model=MODEL, socket=path)
        assert os.waitpid(impostor, 0)[1] == 0
