"""The log: versions that one receiver writes to a directory, and others read without the trainer."""

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from credentials import key_pair
from harness import LOCKSTEPCTL, wait_until
from process_memory import PeakMemory
from replicas import ToyModel, differing_tensor


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


def test_receivers_that_read_the_log_have_what_the_trainer_published_and_need_no_agent(cluster, agent, log):
    model = ToyModel(blocks=8)
    writer = cluster.receiver(agent, name="writer", archive=log)
    early = cluster.receiver(log, name="early")
    with agent.publisher(model.tensors) as publisher:
        with early.recorded_syncs() as syncs:
            for version in range(1, 7):
                publisher.publish(version=version, tensors=model.step(), label=f"step {version}")
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
        model.reach(publisher, 1, trusting)
        wait_until(lambda: "no key that is trusted" in refusing.model_status()["last_error"], "the reader says why")
        assert not refusing.file().exists()
        # A writer without the key: what it writes is not taken, and what was is held.
        before = {name: tensor.copy() for name, tensor in model.tensors.items()}
        writer.stop()
        unsigned = cluster.receiver(agent, name="unsigned", archive=log)
        publisher.publish(version=2, tensors=model.step())
        wait_archived(unsigned, 2)
        wait_until(lambda: "is not signed" in trusting.model_status()["last_error"], "the reader says why")
        trusting.wait_for(before)


def test_a_log_of_the_same_key_and_model_is_not_read_in_the_place_of_the_one_before(cluster, agent, log):
    private, public = key_pair(cluster.directory, "ours")
    elsewhere = cluster.directory / "staging-log"
    elsewhere.mkdir()
    model, other = ToyModel(blocks=4), ToyModel(blocks=4, seed=1)
    writer = cluster.receiver(agent, name="writer", archive=log, archive_key=private)
    reader = cluster.receiver(log, name="reader", log_keys=public)
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, reader)
        writer.stop()
    time.sleep(1.1)  # its epoch is a later one
    writer = cluster.receiver(agent, name="staging", archive=f"file://{elsewhere}", archive_key=private)
    with agent.publisher(other.tensors) as publisher:
        for version in (1, 2):
            publisher.publish(version=version, tensors=other.step())
        wait_archived(writer, 2)
    shutil.copytree(elsewhere, log.removeprefix("file://"), dirs_exist_ok=True)
    error = wait_until(lambda: reader.model_status()["last_error"], "the reader says why")
    assert "is of another log" in error
    reader.wait_for(model.tensors)
    reader.kill()
    shutil.rmtree(reader.root)  # as a reboot does
    reader.start()
    error = wait_until(lambda: reader.model_status()["last_error"], "the reader remembers")
    assert "is of another log" in error and not reader.file().exists()
    Path(re.search(r"if it is the right one, remove (\S+)", error)[1]).unlink()
    reader.wait_for(other.tensors)


def test_a_log_that_was_removed_and_begun_again_is_the_same_one_for_its_readers(cluster, agent, log):
    model = ToyModel(blocks=4)
    writer = cluster.receiver(agent, name="writer", archive=log)
    reader = cluster.receiver(log, name="reader")
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, reader)
        before = json.loads(ctl_log("ls", log).stdout)[0]
        writer.stop()
        shutil.rmtree(log.removeprefix("file://") + "/actor")
        writer.start()
        model.reach(publisher, 2, reader)
    after = json.loads(ctl_log("ls", log).stdout)[0]
    assert after["id"] == before["id"] and after["epoch"] > before["epoch"]


def test_the_keys_of_a_log_are_read_again_for_each_head(cluster, agent, log):
    private, public = key_pair(cluster.directory, "ours")
    _, others = key_pair(cluster.directory, "others")
    keys = cluster.directory / "keys.pem"
    shutil.copy(public, keys)
    model = ToyModel(blocks=2)
    cluster.receiver(agent, name="writer", archive=log, archive_key=private)
    reader = cluster.receiver(log, name="reader", log_keys=keys)
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, reader)
        before = model.copy()
        for content, why in ((others.read_bytes(), "no key that is trusted"), (b"", "has no public key")):
            keys.write_bytes(content)
            publisher.publish(tensors=model.step())
            wait_until(lambda why=why: why in reader.model_status()["last_error"], "the reader says why")
        reader.wait_for(before)
        keys.write_bytes(others.read_bytes() + public.read_bytes())
        reader.wait_for(model.tensors)


def test_a_receiver_signs_nothing_that_no_key_of_its_source_has_signed(cluster, log):
    private, public = key_pair(cluster.directory, "ours")
    other = cluster.directory / "other-log"
    other.mkdir()
    relay = cluster.receiver(log, name="relay", start=False, archive=f"file://{other}", archive_key=private)
    refused = subprocess.run(relay.command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 78 and "without --log-keys" in refused.stderr
    cluster.receiver(log, name="trusting", archive=f"file://{other}", archive_key=private, log_keys=public)


def test_a_version_that_the_writer_was_rolled_back_from_is_not_what_new_readers_get(cluster, agent, log):
    model = ToyModel(blocks=4)
    writer = cluster.receiver(agent, name="writer", archive=log)
    early = cluster.receiver(log, name="early")
    versions = {}

    def newest() -> "tuple[int, int]":
        history = json.loads(ctl_log("ls", log).stdout)[0]["history"]
        return history["newest"]["version"], history.get("current", {}).get("version", 0)

    with agent.publisher(model.tensors) as publisher:
        for version in (1, 2, 3):
            model.reach(publisher, version, early)
            versions[version] = model.copy()
        assert writer.ctl("rollback", "--not", "3").returncode == 0
        wait_until(lambda: newest() == (3, 2), "the log offers version 2")
        late = cluster.receiver(log, name="late")
        late.wait_for(versions[2])
        early.wait_for(versions[3])  # its operator rolls it back, or not
        assert not early.model_status()["last_error"]
        out = cluster.directory / "fetched"
        assert ctl_log("fetch", log, "--out", out).returncode == 0
        assert differing_tensor(out / "model.safetensors", versions[2]) is None
        publisher.publish(version=4, tensors=model.step())
        for reader in (early, late):
            reader.wait_for(model.tensors)
        assert newest() == (4, 0)
        assert ctl_log("verify", log).returncode == 0


def test_a_reader_of_a_log_that_stands_still_is_not_ready_and_says_so(cluster, agent, log):
    model = ToyModel(blocks=4)
    cluster.receiver(agent, name="writer", archive=log)
    reader = cluster.receiver(log, name="reader", log_max_age="5s", engine="hook:true")

    def ready() -> "set[int]":
        services = ("readiness", "raas-receiver-engine/actor")
        return {reader.ctl("--quiet", "health", service).returncode for service in services}

    with agent.publisher(model.tensors) as publisher:
        for version in (1, 2):
            model.reach(publisher, version, reader)
            wait_until(lambda: ready() == {0}, "it is ready")
            assert not reader.model_status()["last_error"]
            wait_until(lambda: ready() == {69}, "it is not any more")
            assert "--log-max-age" in reader.model_status()["last_error"]
    assert reader.log().count('"event":"log_stale"') == 2
    reader.wait_for(model.tensors)  # which it holds, and serves


def test_a_receiver_reads_the_log_while_the_agent_is_away_and_returns_to_it(cluster, agent, log):
    model = ToyModel(blocks=4)
    writer = cluster.receiver(agent, name="writer", archive=log)
    reader = cluster.receiver([agent.address, log], name="reader")
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, reader)
        assert reader.model_status()["source"] == agent.address
        wait_archived(writer, 1)
        agent.kill()
        wait_until(lambda: reader.model_status()["source"] == log, "the log is read")
        reader.wait_for(model.tensors)
        agent.start()
        wait_until(lambda: reader.model_status()["source"] == agent.address, "the agent is followed again")
        model.reach(publisher, 2, reader)
        wait_archived(writer, 2)


def test_of_two_writers_one_stops_with_a_clear_word_and_readers_follow_the_other(cluster, agent, log):
    model = ToyModel(blocks=4)
    first = cluster.receiver(agent, name="first", archive=log)
    reader = cluster.receiver(log, name="reader")
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, reader)
        second = cluster.receiver(agent, name="second", archive=log)
        wait_archived(second, 1)
        model.reach(publisher, 2, reader)
        wait_until(lambda: archive_of(first)["state"] == "taken_over", "the first has stopped")
        assert "taken over by second" in archive_of(first)["last_error"]
        first.wait_for(model.tensors)  # it goes on as a receiver
    assert reader.model_status()["failures"] == 0


def test_a_reader_that_was_away_takes_many_deltas_within_the_memory_that_it_may_use(cluster, agent, log):
    model = ToyModel(blocks=384)  # 96 MiB
    writer = cluster.receiver(agent, name="writer", archive=log, archive_keep_bytes="1GiB")
    bounds = {"log_memory_bytes": "16MiB", "keep_delta_bytes": "1MiB"}
    reader = cluster.receiver(log, name="reader", **bounds)
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, reader)
        reader.stop()
        for version in range(2, 14):
            publisher.publish(version=version, tensors=model.step(density=0.1))
            wait_archived(writer, version)
        deltas = [step["payload"]["bytes"] for step in json.loads(ctl_log("ls", log).stdout)[0]["history"]["steps"]]
        assert sum(deltas) > 64 << 20 and max(deltas) < 16 << 20
        reader.start()
        with PeakMemory(reader.process.pid) as peak:
            reader.wait_for(model.tensors)
    assert peak.peak < (16 + 24) << 20, "the bound, and what the process takes"
    modes = re.findall(r'"version_committed".*"mode":"(\w+)"', reader.log())
    assert modes[0] == "full" and set(modes[1:]) == {"chain"} and len(modes) > 4
    assert reader.model_status()["held"]["version"] == 13 and reader.model_status()["failures"] == 0


def ctl_log(*arguments: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(part) for part in (LOCKSTEPCTL, "--json", "log", *arguments)], capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def written(cluster, agent, log) -> "dict[int, dict]":
    """What each version in the log is."""
    model = ToyModel(blocks=8)
    writer = cluster.receiver(agent, name="writer", archive=log)
    versions = {}
    with agent.publisher(model.tensors) as publisher:
        for version in range(1, 6):
            publisher.publish(version=version, tensors=model.step(), label=f"step {version}")
            wait_archived(writer, version)
            versions[version] = {name: tensor.copy() for name, tensor in model.tensors.items()}
    writer.kill()  # it leaves what it leaves
    return versions


def test_a_log_is_listed_and_its_versions_are_fetched_without_a_daemon(cluster, log, written):
    [listed] = json.loads(ctl_log("ls", log).stdout)
    assert listed["history"]["newest"]["label"] == "step 5" and listed["history"]["oldest"] == 1
    for version, tensors in written.items():
        out = cluster.directory / f"fetched-{version}"
        fetched = ctl_log("fetch", log, "--version", version, "--out", out)
        assert fetched.returncode == 0, fetched.stderr
        assert oct(out.stat().st_mode & 0o7777) == "0o750"
        assert {oct(path.stat().st_mode & 0o7777) for path in out.iterdir()} == {"0o640"}
        assert differing_tensor(out / "model.safetensors", tensors) is None
        assert json.loads((out / "lockstep.json").read_text())["version"] == version
    refused = ctl_log("fetch", log, "--version", 6, "--out", cluster.directory / "none")
    assert refused.returncode != 0 and "has versions 1 to 5" in refused.stderr
    assert "is there already" in ctl_log("fetch", log, "--out", cluster.directory / "fetched-5").stderr
    text = subprocess.run([LOCKSTEPCTL, "log", "ls", log, "actor"], capture_output=True, text=True, check=True).stdout
    assert "step 3" in text and "writer" in text


def test_a_flipped_bit_in_any_object_of_a_log_is_named(log, written):
    directory = Path(log.removeprefix("file://"))
    proved = ctl_log("verify", log)
    assert proved.returncode == 0 and json.loads(proved.stdout)["versions"] == len(written)
    objects = [path for path in directory.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert {path.parent.name for path in objects} >= {"actor", "layout", "manifest", "delta", "chunk"}
    old = []
    for path in objects:
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[len(flipped) // 3] ^= 8
        path.write_bytes(flipped)
        found = ctl_log("verify", log)
        path.write_bytes(whole)
        if found.returncode == 0:
            old.append(path)  # named by no head any more
        else:
            assert found.returncode == 65 and str(path) in found.stdout + found.stderr
    assert all(path.parent.name == "manifest" for path in old)
    assert ctl_log("verify", log).returncode == 0


def test_what_a_writer_has_left_is_pruned_and_the_log_stays(log, written):
    directory = Path(log.removeprefix("file://"))
    left = directory / "actor/chunk" / ("0" * 64)
    left.write_bytes(b"left")
    (directory / "actor/head.tmp-Ab3x9Q").write_bytes(b"left")
    notes = directory / "actor/README"
    notes.write_text("ours")
    assert "writer has written to the log" in ctl_log("prune", log).stderr  # it may be at work
    assert json.loads(ctl_log("prune", log, "--grace", 0).stdout)["removed"] > 0
    assert not left.exists() and not list(directory.glob("actor/head.tmp-*")) and notes.exists()
    assert ctl_log("verify", log).returncode == 0


def test_a_url_or_a_model_that_is_not_there_is_said_to_be(cluster, log):
    assert "no log of a model" in ctl_log("ls", log).stderr
    assert "is no directory" in ctl_log("ls", "file:///no/such/place").stderr
    assert "file:///DIRECTORY" in ctl_log("verify", "gopher://x").stderr
    refused = cluster.receiver("file:///no/such/place", start=False)
    ended = subprocess.run(refused.command, capture_output=True, text=True)
    assert ended.returncode == 78 and "is no directory; make it" in ended.stderr
