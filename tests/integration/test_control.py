"""lockstep.control: real daemons, seen and steered from Python."""

import socket
import statistics
import subprocess
import sys
import textwrap
import time

import pytest
from harness import MODEL, ROOT
from replicas import ToyModel

import lockstep
from lockstep import control


@pytest.fixture
def agent(cluster):
    return cluster.agent()


def test_what_daemons_say_is_seen_and_waited_for(cluster, agent):
    model = ToyModel(blocks=4)
    receivers = [cluster.receiver(agent, name=f"r{i}") for i in range(2)]
    seen = control.Agent(agent.address)
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.tensors, label="step 10")
        assert seen.wait_served(1, receivers=2, timeout=60).newest_label == "step 10"
        publisher.publish(version=2, tensors=model.step(), label="step 20")
        now = seen.wait_served(receivers=2, timeout=60)
        assert (now.name, now.newest_version, now.newest_label, now.run) == (MODEL, 2, "step 20", publisher.run)
        assert [delta.target for delta in now.deltas] == [2] and now.ranks_connected == 1
        assert {peer.receiver for peer in now.receivers} == {"r0", "r1"}
        assert seen.wait_served(1, receivers=["r0", "r1"], timeout=60).newest_version == 2
        assert seen.wait_served(receivers="r1", timeout=60).newest_version == 2
        missing = 'version 3 is not served by 2 named receivers; "r0" serves version 2; "r9" is not known here'
        with pytest.raises(lockstep.DeadlineError, match=missing) as failed:
            seen.wait_served(3, receivers=["r0", "r9"], timeout=0)
        assert [(peer.receiver, peer.presence) for peer in failed.value.lacking] == [
            ("r0", "connected"),
            ("r9", "unknown"),
        ]
        with pytest.raises(lockstep.NotFoundError, match="critic"):
            seen.wait_served(model="critic")
        served = agent.ctl("wait-served", "--engines", "2", "--label", "step 20")
        assert served.returncode == 0 and "version 2" in served.stdout
    receiver = control.Receiver(receivers[0].address)
    held = receiver.wait(2, timeout=60)
    assert (
        held.held == control.VersionRef(publisher.run, 2)
        and held.held_label == "step 20"
        and held.previous.version == 1
    )
    assert (held.state, held.source, held.archive.url) == ("current", agent.address, "")
    assert [(engine.kind, engine.state, engine.served) for engine in held.engines] == [("none", "serving", held.held)]
    with pytest.raises(TimeoutError, match="version 5 is not served within 0 s: 2 is held"):
        receiver.wait(5, timeout=0)


def test_a_status_is_watched_by_one_process_which_sees_a_change_at_once_and_ends_with_its_reader(
    cluster, agent, monkeypatch
):
    started = []
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **how: started.append(start(*words, **how)) or started[-1])
    model = ToyModel(blocks=1)
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.tensors)
        looks = control.Agent(agent.address).watch()
        late = []
        assert next(looks).models[0].newest_version == 1
        for version in range(2, 12):
            publisher.publish(version=version, tensors=model.step())
            published = time.monotonic()
            while next(looks).models[0].newest_version < version:
                pass
            late.append(time.monotonic() - published)
        assert statistics.median(late) < 0.1, late
        assert len(started) == 1
        began = time.monotonic()
        assert list(control.Agent(agent.address).watch(timeout=0.6))[0].models[0].newest_version == 11
        assert len(started) == 2 and started[1].returncode is not None and 0.6 <= time.monotonic() - began < 10
        watcher = start(agent.ctl_command("--json", "top", "--changes"), stdout=subprocess.PIPE)
        assert watcher.stdout.readline()
        watcher.stdout.close()  # as where its reader was killed
        assert watcher.wait(10) == 0
        agent.kill()
        with pytest.raises(lockstep.UnavailableError, match="trainer_agent"):
            next(looks)
        assert started[0].returncode is not None


def test_a_receiver_is_rolled_back_and_pulls_again(cluster, agent):
    model = ToyModel(blocks=4)
    receiver = control.Receiver(cluster.receiver(agent).address)
    with agent.publisher(model.tensors) as publisher:
        for version in (1, 2):
            publisher.publish(version=version, tensors=model.step())
            receiver.wait(version, timeout=60)
        back = receiver.rollback(to=1)
        assert (back.held.version, back.state) == (1, "held")
        with pytest.raises(lockstep.StateError):
            receiver.rollback(to=7)
        sync = receiver.pull()
        assert (sync.before.version, sync.to.version, sync.mode, sync.error) == (1, 2, "delta", "")
        assert receiver.pull(full=True).mode == "full"
        with pytest.raises(lockstep.BadDataError, match="one of them"):
            receiver.rollback(to=1, skip=2)


def test_syncs_are_seen_as_they_end_after_the_newest_before_and_until_the_receiver_ends(cluster, agent):
    model = ToyModel(blocks=4)
    daemon = cluster.receiver(agent)
    receiver = control.Receiver(daemon.address)
    assert list(receiver.syncs(timeout=0.5)) == []  # it has made none
    with agent.publisher(model.tensors) as publisher:
        for version in (1, 2):
            publisher.publish(version=version, tensors=model.step())
            receiver.wait(version, timeout=60)
        syncs = receiver.syncs(MODEL)
        newest = next(sync for sync in syncs if sync.to.version == 2)
        publisher.publish(version=3, tensors=model.step())
        following = next(syncs)
        for sync in (newest, following):
            assert (sync.model, sync.mode, sync.error, sync.verified) == (MODEL, "delta", "", True)
            assert sync.changed_elements > 0 and sync.payload_bytes > 0 and sync.publish_to_commit_us > 0
        assert (following.before, following.to.version) == (newest.to, 3)
        with pytest.raises(lockstep.NotFoundError, match="critic"):
            next(receiver.syncs("critic"))
        daemon.kill()
        with pytest.raises(lockstep.UnavailableError, match="raas_receiver"):
            next(syncs)


def test_a_model_is_dropped_once_its_trainer_has_ended_and_receivers_keep_it(cluster, agent):
    model = ToyModel()
    seen = control.Agent(agent.address)
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.step())
        receiver = cluster.receiver(agent)
        receiver.wait_for(model.tensors)
        with pytest.raises(lockstep.StateError, match="ranks of its trainer are connected; end the trainer first"):
            seen.drop(MODEL)
    assert list(agent.segment_dir.glob(f"{MODEL}.*"))
    freed = seen.drop(MODEL)
    assert not list(agent.segment_dir.glob(f"{MODEL}.*"))
    assert freed > 2 * sum(tensor.nbytes for tensor in model.tensors.values())
    assert seen.status().models == ()
    with pytest.raises(lockstep.NotFoundError, match=f"model {MODEL} is not open here"):
        seen.drop(MODEL)
    receiver.wait_for(model.tensors)
    with agent.publisher(model.tensors) as publisher:  # and a trainer may come back
        publisher.publish(version=1, tensors=model.step())
        receiver.wait_for(model.tensors)


def test_daemons_and_models_that_are_not_there_are_said_to_be(cluster, agent):
    model = ToyModel(blocks=1)
    seen = control.Agent(agent.address)
    with pytest.raises(lockstep.NotFoundError, match="the agent has no model; it has none yet"):
        seen.model()
    with agent.publisher(model.tensors), agent.publisher(model.tensors, "critic"):
        with pytest.raises(lockstep.BadDataError, match="several models, name one of them: actor, critic"):
            seen.model()
        with pytest.raises(lockstep.NotFoundError, match="no model other; it has actor, critic"):
            seen.model("other")
        assert seen.model("critic").newest_version == 0
    with pytest.raises(ConnectionError):
        control.Agent("127.0.0.1:1", timeout=5).status()
    with pytest.raises(lockstep.BadDataError):
        control.Receiver("nowhere").status()
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises((ConnectionError, TimeoutError)) as failed:
        control.Agent(f"127.0.0.1:{silent.getsockname()[1]}", timeout=2).status()
    assert "waiting for" not in str(failed.value) and "trainer_agent" in str(failed.value)


def test_the_environment_says_where_daemons_are(cluster, agent, monkeypatch):
    receiver = cluster.receiver(agent)
    monkeypatch.setenv("LOCKSTEP_AGENT", agent.address)
    monkeypatch.setenv("LOCKSTEP_RECEIVER", receiver.address)
    assert control.Agent().status().models == ()
    assert control.Receiver().status().name == receiver.name


def test_a_users_mistakes_are_found_by_their_type_checker(tmp_path):
    file = tmp_path / "user.py"
    file.write_text(
        textwrap.dedent(
            """
            import lockstep
            from lockstep import control

            status = control.Agent().status()
            names: list[str] = [model.name for model in status.models]
            status.models[0].newest_verson
            control.Receiver().rollback(to="41")
            with lockstep.Publisher.in_place({}, model="actor", socket="/agent.sock") as publisher:
                publisher.publsh(1)
            with lockstep.Publisher.from_tensors({}, model="actor") as publisher:
                publisher.publish(version="1")
            lockstep.Publisher.from_fsdp(None, socket="/agent.sock", model="actor", call_timeout_ms=5)
            lockstep.wait_for("/replicas/actor", "1")
            lockstep.describe(None, ignor="mtp.*")
            lockstep.Follower(None, model="actor", socket="/engine.sock", world="2")
            """
        )
    )
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), file],
        capture_output=True,
        text=True,
        env={"MYPYPATH": str(ROOT / "python"), "PATH": "/usr/bin"},
    )
    errors = [line for line in checked.stdout.splitlines() if line.startswith(str(file)) and " error: " in line]
    assert [line.split(":")[1] for line in errors] == ["7", "8", "10", "12", "13", "14", "15", "16"], checked.stdout
