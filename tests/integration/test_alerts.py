"""Each alert, raised by what it is for on real daemons, and healed by what its line of docs/howto/runbook.md says."""

import os
import re
import signal
import socket

import pytest
from credentials import Ca
from harness import MODEL, ROOT, wait_until
from prometheus import ALERTS, Prometheus
from replicas import ToyModel

LISTEN = {"metrics_listen": "127.0.0.1:0"}


@pytest.fixture
def prometheus(cluster):
    prometheus = Prometheus(cluster.directory / "prometheus")
    yield prometheus
    prometheus.close()


def publish(agent, model, *versions: int) -> None:
    with agent.publisher(model.tensors) as publisher:
        for version in versions:
            publisher.publish(version=version, tensors=model.step())


def test_every_alert_is_raised_here():
    tests = re.findall(r"\bLockstep\w+", (ROOT / "tests/integration/test_alerts.py").read_text())
    assert set(re.findall(r"alert: (\w+)", ALERTS.read_text())) == set(tests)


def test_a_fleet_that_falls_apart(cluster, prometheus):
    model = ToyModel(blocks=8)
    agent = cluster.agent(**LISTEN)
    follower = cluster.receiver(agent, **LISTEN)
    straggler = cluster.receiver(agent, follow=False, **LISTEN)
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, follower)
        straggler.ask("pull")
        prometheus.scrape(agent, follower, straggler)
        for version in range(2, 5):
            publisher.publish(version=version, tensors=model.step())
        prometheus.wait_for("LockstepReceiverBehind", "LockstepFleetSplit")
        straggler.ask("pull")
        prometheus.wait_for_none()

        for receiver in (follower, straggler):
            receiver.kill()
        prometheus.wait_for("LockstepDaemonGone", "LockstepNoReceivers")
        for receiver in (follower, straggler):
            receiver.start()
        prometheus.scrape(agent, follower, straggler)  # their ports are others
        prometheus.wait_for_none()


def test_an_engine_that_refuses(cluster, prometheus):
    model = ToyModel(blocks=8)
    broken = cluster.directory / "broken"
    agent = cluster.agent(**LISTEN)
    receiver = cluster.receiver(agent, engine=f"hook:test ! -e {broken}", **LISTEN)
    prometheus.scrape(agent, receiver)
    publish(agent, model, 1)
    wait_until(lambda: receiver.model_status(MODEL)["served_version"] == 1, "the engine serves")
    broken.touch()
    publish(agent, model, 2)
    prometheus.wait_for("LockstepEngineRefuses", "LockstepEngineBehind", "LockstepSyncFailing")
    broken.unlink()
    receiver.ctl("pull", "--full")
    prometheus.wait_for_none()


def test_a_log_that_is_not_written(cluster, prometheus):
    model = ToyModel(blocks=8)
    log = cluster.directory / "log"
    log.mkdir()
    agent = cluster.agent(**LISTEN)
    receiver = cluster.receiver(agent, archive=f"file://{log}", **LISTEN)
    prometheus.scrape(agent, receiver)
    publish(agent, model, 1)
    wait_until(lambda: receiver.model_status()["archive"]["newest"]["version"] == 1, "it is in the log")
    (log / MODEL).rename(log / "away")
    (log / MODEL).touch()
    publish(agent, model, 2)
    prometheus.wait_for("LockstepLogBehind")
    (log / MODEL).unlink()
    (log / "away").rename(log / MODEL)
    prometheus.wait_for_none()


def test_a_log_that_stands_still(cluster, prometheus):
    model = ToyModel(blocks=8)
    log = cluster.directory / "log"
    log.mkdir()
    agent = cluster.agent(**LISTEN)
    writer = cluster.receiver(agent, archive=f"file://{log}", **LISTEN)
    reader = cluster.receiver(f"file://{log}", log_max_age="5s", **LISTEN)
    publish(agent, model, 1)
    reader.wait_for(model.tensors)
    prometheus.scrape(agent, writer, reader)
    writer.kill()
    prometheus.wait_for("LockstepLogStale")
    writer.start()
    prometheus.scrape(agent, writer, reader)
    wait_until(lambda: "LockstepLogStale" not in prometheus.firing(), "its head is written again")


def test_a_trainer_that_dies_in_a_version(cluster, prometheus):
    agent = cluster.agent(**LISTEN)
    receiver = cluster.receiver(agent, **LISTEN)
    model = ToyModel(blocks=8)
    publish(agent, model, 1)
    prometheus.scrape(agent, receiver)
    wait_until(lambda: prometheus.query("trainer_agent_newest_version == 1"), "it is scraped")
    child = os.fork()
    if child == 0:
        publisher = agent.publisher(model.tensors)
        publisher.begin(2)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    prometheus.wait_for("LockstepVersionsAborted")
    publish(agent, model, 2)
    receiver.wait_for(model.tensors)
    prometheus.wait_for_none()


def test_memory_that_loses_bits(cluster, prometheus):
    agent = cluster.agent(**LISTEN)
    receiver = cluster.receiver(agent, scrub_round="500ms", **LISTEN)
    model = ToyModel(blocks=8)
    publish(agent, model, 1)
    receiver.wait_for(model.tensors)
    prometheus.scrape(agent, receiver)
    wait_until(lambda: prometheus.query("raas_receiver_scrubbed_bytes_total > 0"), "it is scrubbed")
    with open(receiver.file(), "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    prometheus.wait_for("LockstepRepairs")
    wait_until(lambda: receiver.ctl("verify").returncode == 0, "what was found is repaired")
    prometheus.wait_for_none()


def test_a_root_without_room_and_a_certificate_near_its_end(cluster, prometheus):
    ca = Ca(cluster.directory / "ca")
    ca.allow(("receiver", "receiver"), ("agent", "receiver"))
    ca.issue("agent", days=3)
    agent = cluster.agent(**LISTEN, listen="127.0.0.1:0", **ca.daemon("agent"))
    agent.credentials = ca.files("agent")
    model = ToyModel(blocks=8)
    publish(agent, model, 1)
    receiver = cluster.receiver(agent, root=cluster.small_tmpfs("root", 12), **LISTEN, **ca.daemon("receiver"))
    receiver.wait_for(model.tensors)
    prometheus.scrape(agent, receiver)
    prometheus.wait_for("LockstepCertificateEnds")
    ca.issue("agent", days=30)
    prometheus.wait_for_none()

    filler = receiver.root / "filler"
    free = os.statvfs(receiver.root).f_bavail * os.statvfs(receiver.root).f_frsize
    filler.write_bytes(bytes(free - 4096))
    prometheus.wait_for("LockstepRoomShort")
    filler.unlink()
    prometheus.wait_for_none()


def test_a_peer_without_a_ticket(cluster, prometheus):
    agent = cluster.agent(**LISTEN)
    receiver = cluster.receiver(agent, **LISTEN)
    publish(agent, ToyModel(blocks=8), 1)
    prometheus.scrape(agent, receiver)
    host, _, port = agent.addresses["lanes"].rpartition(":")

    def knock() -> None:
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(bytes(4096))

    wait_until(lambda: prometheus.query('trainer_agent_events_total{event="lane_refused"} == 0'), "it is scraped")
    knock()
    prometheus.wait_for("LockstepPeersRefused")
    prometheus.wait_for_none()
