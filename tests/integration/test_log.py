"""The log: versions that one receiver writes to a directory, and others read without the trainer."""

import random
import subprocess
import time

import pytest
from harness import wait_until
from replicas import ToyModel


@pytest.fixture
def log(cluster) -> str:
    path = cluster.directory / "log"
    path.mkdir()
    return f"file://{path}"


@pytest.fixture
def agent(cluster):
    return cluster.agent()


def archive_of(receiver) -> dict:
    return receiver.model_status()["archive"]


def wait_archived(receiver, version: int) -> None:
    wait_until(lambda: archive_of(receiver).get("newest", {}).get("version") == version, f"{version} is in the log")


def key_pair(directory, name: str):
    private, public = directory / f"{name}.pem", directory / f"{name}.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
    private.chmod(0o600)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    return private, public


def test_receivers_that_read_the_log_have_what_the_trainer_published_and_need_no_agent(cluster, agent, log):
    model = ToyModel(blocks=8)
    writer = cluster.receiver(agent, name="writer", archive=log)
    early = cluster.receiver(log, name="early")
    with agent.publisher(model.tensors) as publisher:
        with early.recorded_syncs() as syncs:
            for version in range(1, 7):
                publisher.publish(version, model.step(), label=f"step {version}")
                early.wait_for(model.tensors)
        assert [sync["mode"] for sync in syncs] == ["full"] + ["delta"] * 5
        agent.stop()
        writer.stop()
        late = cluster.receiver(log, name="late")
        late.wait_for(model.tensors)
    for reader in (early, late):
        status = reader.model_status()
        assert status["source"] == log and status["held_label"] == "step 6" and not status["last_error"]
        assert reader.ctl("verify", "--agent", agent.address).returncode != 0  # which is not there
    assert early.ctl("rollback").returncode == 0
    assert early.model_status()["held"]["version"] == 5
    for how in ([], ["--full"]):
        assert early.ctl("pull", *how).returncode == 0
        early.wait_for(model.tensors)


def test_a_log_that_is_not_signed_by_a_trusted_key_is_not_read(cluster, agent, log):
    private, public = key_pair(cluster.directory, "ours")
    _, others = key_pair(cluster.directory, "others")
    model = ToyModel(blocks=2)
    writer = cluster.receiver(agent, name="writer", archive=log, archive_key=private)
    trusting = cluster.receiver(log, name="trusting", log_keys=public)
    refusing = cluster.receiver(log, name="refusing", log_keys=others)
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(1, model.step())
        trusting.wait_for(model.tensors)
        wait_until(lambda: "no key that is trusted" in refusing.model_status()["last_error"], "the reader says why")
        assert not refusing.file().exists()
        # A writer without the key: what it writes is not taken, and what was is held.
        before = {name: tensor.copy() for name, tensor in model.tensors.items()}
        writer.stop()
        unsigned = cluster.receiver(agent, name="unsigned", archive=log)
        publisher.publish(2, model.step())
        wait_archived(unsigned, 2)
        wait_until(lambda: "is not signed" in trusting.model_status()["last_error"], "the reader says why")
        trusting.wait_for(before)


def test_a_receiver_reads_the_log_while_the_agent_is_away_and_returns_to_it(cluster, agent, log):
    model = ToyModel(blocks=4)
    writer = cluster.receiver(agent, name="writer", archive=log)
    reader = cluster.receiver([agent.address, log], name="reader")
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(1, model.step())
        reader.wait_for(model.tensors)
        assert reader.model_status()["source"] == agent.address
        wait_archived(writer, 1)
        agent.kill()
        wait_until(lambda: reader.model_status()["source"] == log, "the log is read")
        reader.wait_for(model.tensors)
        agent.start()
        wait_until(lambda: reader.model_status()["source"] == agent.address, "the agent is followed again")
        publisher.publish(2, model.step())
        reader.wait_for(model.tensors)
        wait_archived(writer, 2)


def test_a_writer_that_is_killed_at_any_moment_goes_on_with_the_log(cluster, agent, log):
    random.seed(4)
    model = ToyModel(blocks=16)
    writer = cluster.receiver(agent, name="writer", archive=log)
    reader = cluster.receiver(log, name="reader")
    begun = 0
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(1, model.step())
        reader.wait_for(model.tensors)
        for version in range(2, 14):
            publisher.publish(version, model.step())
            time.sleep(random.random() * 0.15)
            writer.kill()
            writer.start()
        wait_archived(writer, 13)
        reader.wait_for(model.tensors)
        begun = writer.log().count("archive_begun")
    status = reader.model_status()
    assert status["failures"] == 0 and not status["last_error"]
    assert begun == 1, "a whole model was written again"


def test_of_two_writers_one_stops_with_a_clear_word_and_readers_follow_the_other(cluster, agent, log):
    model = ToyModel(blocks=4)
    first = cluster.receiver(agent, name="first", archive=log)
    reader = cluster.receiver(log, name="reader")
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(1, model.step())
        reader.wait_for(model.tensors)
        second = cluster.receiver(agent, name="second", archive=log)
        wait_archived(second, 1)
        publisher.publish(2, model.step())
        reader.wait_for(model.tensors)
        wait_until(lambda: archive_of(first)["state"] == "taken_over", "the first has stopped")
        assert "taken over by second" in archive_of(first)["last_error"]
        first.wait_for(model.tensors)  # it goes on as a receiver
    assert reader.model_status()["failures"] == 0
