"""The local path: receivers on the agent's host take bytes from its memory, and lanes are there when they cannot."""

import os
import random
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import xxhash
from replicas import BLOCK, ToyModel, differing_tensor
from test_bad_input import lane_hello, send_and_read


def total_bytes(model: ToyModel) -> int:
    return sum(tensor.nbytes for tensor in model.tensors.values())


def test_full_pulls_and_deltas_come_from_memory_on_the_agents_host(cluster):
    model = ToyModel(blocks=40)
    agent = cluster.agent(local_socket="auto")
    receiver = cluster.receiver(agent)
    with agent.publisher(model.tensors) as publisher:
        with receiver.recorded_syncs() as syncs:
            for version in range(1, 6):
                model.reach(publisher, version, receiver)
        full = receiver.ask("pull", "--full")
    assert [sync["mode"] for sync in syncs] == ["full"] + ["delta"] * 4
    assert all(sync["verified"] and 0 < sync["local_bytes"] == sync["payload_bytes"] for sync in syncs)
    assert full["mode"] == "full" and full["local_bytes"] == full["payload_bytes"] >= total_bytes(model)
    assert differing_tensor(receiver.file(), model.tensors) is None
    assert receiver.ctl("verify").returncode == 0


def test_a_chain_comes_from_memory_too(cluster):
    model = ToyModel(blocks=40)
    agent = cluster.agent(local_socket="auto")
    receiver = cluster.receiver(agent, follow=False)
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.step())
        agent.wait_for(1)
        receiver.ask("pull")
        for version in range(2, 5):
            publisher.publish(version=version, tensors=model.step())
        agent.wait_for(4)
        record = receiver.ask("pull")
    assert record["mode"] == "chain"
    assert record["local_bytes"] == record["payload_bytes"] > 0
    assert differing_tensor(receiver.file(), model.tensors) is None


@pytest.mark.parametrize("reach", ["none", "another mount"])
def test_lanes_carry_everything_where_the_socket_is_not_in_sight(cluster, reach):
    model = ToyModel(blocks=8)
    path = cluster.directory / "pull.sock"
    agent = cluster.agent(local_socket="none" if reach == "none" else path)
    receiver = cluster.receiver(agent, follow=False)
    if reach == "another mount":
        path.unlink()  # it leads nowhere for the receiver, as in a pod of its own
    with agent.publisher(model.tensors) as publisher:
        for version, mode in ((1, "full"), (2, "delta")):
            publisher.publish(version=version, tensors=model.step())
            agent.wait_for(version)
            record = receiver.ask("pull")
            assert (record["mode"], record["local_bytes"]) == (mode, 0)
            assert record["payload_bytes"] > 0 and record["verified"]
    assert differing_tensor(receiver.file(), model.tensors) is None
    assert "WARN" not in receiver.log() and '"warn"' not in receiver.log()


def test_with_memfds_full_pulls_come_from_memory_and_deltas_on_lanes(cluster):
    model = ToyModel(blocks=8)
    agent = cluster.agent(local_socket="auto", segments="memfd")
    receiver = cluster.receiver(agent, follow=False)
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.step())
        agent.wait_for(1)
        full = receiver.ask("pull")
        publisher.publish(version=2, tensors=model.step())
        agent.wait_for(2)
        delta = receiver.ask("pull")
    assert full["local_bytes"] == full["payload_bytes"] >= total_bytes(model)
    assert delta["local_bytes"] == 0 < delta["payload_bytes"]
    assert differing_tensor(receiver.file(), model.tensors) is None


def test_a_trainer_that_overwrites_the_halves_all_the_while_spoils_no_replica(cluster):
    model = ToyModel(blocks=200)
    agent = cluster.agent(local_socket="auto")
    receiver = cluster.receiver(agent, follow=False)
    published = threading.Event()

    def pull_until_published() -> "list[dict]":
        records = []
        while not published.is_set():
            records.append(receiver.ask("pull", "--full"))
        return records

    with agent.publisher(model.tensors) as publisher, ThreadPoolExecutor() as pool:
        publisher.publish(version=1, tensors=model.step())
        agent.wait_for(1)
        pulls = pool.submit(pull_until_published)
        for version in range(2, 60):
            for tensor in model.tensors.values():
                tensor[version :: BLOCK // 4] += 1  # every block
            publisher.publish(version=version, tensors=model.tensors)
        published.set()
        records = pulls.result()
        agent.wait_for(59)
        final = receiver.ask("pull")
    assert len(records) > 2 and all(record["mode"] == "full" and record["verified"] for record in records)
    assert all(record["local_bytes"] > 0 for record in records)
    assert final["to"]["version"] == 59 and final["verified"]
    assert differing_tensor(receiver.file(), model.tensors) is None
    assert receiver.model_status()["failures"] == 0


def test_an_agent_killed_in_between_leaves_a_receiver_that_follows_its_successor(cluster):
    model = ToyModel(blocks=40)
    agent = cluster.agent(local_socket="auto")
    receiver = cluster.receiver(agent)
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, receiver)
        agent.kill()
        agent.start()  # takes the socket's path over
        with receiver.recorded_syncs() as syncs:
            model.reach(publisher, 2, receiver)
    assert syncs[-1]["local_bytes"] == syncs[-1]["payload_bytes"] > 0


def test_garbage_strangers_and_silence_on_the_local_socket_harm_no_receiver_and_no_agent(cluster):
    model = ToyModel(blocks=8)
    path = str(cluster.directory / "pull.sock")
    agent = cluster.agent(local_socket=path)
    receiver = cluster.receiver(agent, follow=False)
    noise = np.random.default_rng(1).bytes(100_000)
    stranger = lane_hello(1, bytes(range(16)))
    silent = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(20)]
    for one in silent:
        one.connect(path)
    try:
        with agent.publisher(model.tensors) as publisher:
            publisher.publish(version=1, tensors=model.step())
            agent.wait_for(1)
            for pieces in ([noise], [b"GET / HTTP/1.1\r\n\r\n"], [stranger[:30]], [b""], [stranger[:20] + noise]):
                assert send_and_read(path, *pieces) == b""
            magic, _, _, code, _, _ = struct.unpack("<4sHHIIQ", send_and_read(path, stranger, noise))
            assert magic == b"LSWA" and code != 0
            record = receiver.ask("pull")
            assert record["verified"] and record["local_bytes"] == record["payload_bytes"] > 0
    finally:
        for one in silent:
            one.close()
    assert differing_tensor(receiver.file(), model.tensors) is None
    assert agent.answers() and "ticket" in agent.log()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_other_users_are_turned_away(cluster):
    path = cluster.directory / "pull.sock"
    agent = cluster.agent(local_socket=path)
    cluster.directory.chmod(0o755)
    path.chmod(0o666)
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            answer = send_and_read(str(path), lane_hello(1, bytes(16)))
            os._exit(0 if answer == b"" else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert "65534" in agent.log()


def test_a_receiver_abandons_a_false_agent_and_takes_lanes(cluster):
    """Another program listens at the path that the plan names, and answers nonsense."""
    model = ToyModel(blocks=8)
    path = cluster.directory / "pull.sock"
    agent = cluster.agent(local_socket=path)
    receiver = cluster.receiver(agent, follow=False)
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, ThreadPoolExecutor() as pool:
        listener.bind(str(path))
        listener.listen()
        welcome = struct.pack("<4sHHII", b"LSWA", 1, 24, 0, 0)
        welcome += struct.pack("<Q", xxhash.xxh3_64_intdigest(welcome))

        def answer_nonsense() -> None:
            for nonsense in (b"", welcome, welcome + random.Random(1).randbytes(4096)):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(48)
                    connection.sendall(nonsense)

        impostor = pool.submit(answer_nonsense)
        with agent.publisher(model.tensors) as publisher:
            for version in range(1, 4):
                publisher.publish(version=version, tensors=model.step())
                agent.wait_for(version)
                record = receiver.ask("pull")
                assert record["verified"] and record["local_bytes"] == 0 < record["payload_bytes"]
        impostor.result(timeout=60)
    assert differing_tensor(receiver.file(), model.tensors) is None
