"""What a trainer calls its versions, wherever they go, and its wait until the fleet serves one."""

import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from harness import MODEL, wait_until
from replicas import ToyModel

import lockstep
from lockstep import control
from lockstep.integrations._replicas import Awaited


def publisher_of(agent, tensors):
    publisher = lockstep.Publisher.in_place(tensors, model=MODEL, socket=agent.socket)
    return publisher, lambda version, label=None: publisher.publish(version=version, tensors=tensors, label=label)


def exporter_of(agent, tensors):
    exporter = lockstep.Publisher.from_tensors(tensors, socket=agent.socket, model=MODEL)
    return exporter, lambda version, label=None: exporter.publish(label, version=version)


def streamer_of(agent, tensors):
    publisher = lockstep.Publisher.from_stream(tensors, model=MODEL, socket=agent.socket)
    return publisher, lambda version, label=None: publisher.publish(
        version=version, tensors=iter(tensors.items()), label=label
    )


ALL = pytest.mark.parametrize("open_for", [publisher_of, exporter_of, streamer_of])


def said(receiver) -> dict:
    return json.loads((receiver.published() / "lockstep.json").read_text())


@ALL
def test_a_label_goes_with_its_version_to_status_directory_and_engine_and_may_be_zero_or_repeat(cluster, open_for):
    model = ToyModel(blocks=2)
    agent = cluster.agent()
    notified = cluster.directory / "notified"
    hook = f'echo "$LOCKSTEP_VERSION=$LOCKSTEP_LABEL" >> {notified}'
    receiver = cluster.receiver(agent, engine=f"hook:{hook}")
    handle, publish = open_for(agent, model.tensors)
    with handle:
        for version, label in enumerate([0, 1, 0, None, "größe 7"], 1):
            model.step()
            publish(version, label=label)
            handle.wait_served(version=version, receivers=1, timeout=60)
            expected = "" if label is None else str(label)
            assert agent.model_status()["newest_label"] == expected
            assert receiver.model_status()["held_label"] == expected
            assert (said(receiver)["version"], said(receiver)["label"]) == (version, expected)
            with lockstep.Replica(receiver.root / MODEL) as replica:
                assert (replica.run, replica.version, replica.label) == (handle.run, version, expected)
            assert notified.read_text().splitlines()[-1] == f"{version}={expected}"
        assert said(receiver)["run"] == handle.run
        assert "größe 7" in agent.ctl("status").stdout
        assert "größe 7" in receiver.ctl("status").stdout
        for daemon in (receiver, agent):
            daemon.kill()
            daemon.start()
        assert agent.model_status()["newest_label"] == receiver.model_status()["held_label"] == "größe 7"
        assert handle.wait_served("größe 7", receivers=1, timeout=60) == 5
        for bad in ("x" * 65, "a\nb", 1.5):
            with pytest.raises(lockstep.BadDataError, match="label is .*; give text of at most 64 bytes"):
                publish(6, label=bad)
        publish(6, label=7)


@ALL
def test_a_wait_for_the_fleet_names_the_receiver_whose_engine_refuses_with_its_error_and_ends_when_it_takes_it(
    cluster, open_for
):
    model = ToyModel(blocks=2)
    agent = cluster.agent()
    healed = cluster.directory / "healed"
    refuses = f'test -e {healed} || {{ echo "no room for $LOCKSTEP_LABEL"; exit 1; }}'
    cluster.receiver(agent, name="good", engine="hook:true")
    cluster.receiver(agent, name="bad", engine=f"hook:{refuses}", engine_attempts=1)
    handle, publish = open_for(agent, model.tensors)
    with handle:
        publish(1, label="step 10")
        assert handle.wait_served("step 10", receivers=1, timeout=60) == 1
        assert handle.wait_served("step 10", receivers="good", timeout=60) == 1

        def refusal() -> "lockstep.DeadlineError | None":
            with pytest.raises(lockstep.DeadlineError) as raised:
                handle.wait_served("step 10", receivers=["good", "bad", "missing"], timeout=0.1)
            return raised.value if "no room" in str(raised.value) else None

        error = wait_until(refusal, "the refusal is told")
        bad, missing = error.lacking
        assert (bad.receiver, bad.presence, bad.held, bad.served_version) == (
            "bad",
            "connected",
            control.VersionRef(handle.run, 1),
            0,
        )
        assert "no room for step 10" in bad.last_error
        assert (missing.receiver, missing.presence, missing.held.version) == ("missing", "unknown", 0)
        text = str(error)
        assert 'label "step 10", version 1, is not served by 3 named receivers' in text
        assert '"missing" is not known here' in text
        assert '"bad" serves nothing, holds version 1, says: ' in text
        assert "no room for step 10" in text
        assert '"good" serves version 1' in text

        waited = []
        waiter = threading.Thread(target=lambda: waited.append(handle.wait_served("step 10", receivers=2)))
        waiter.start()
        model.step()
        publish(2, label="step 11")  # nothing is held up by waits
        assert handle.wait_served("step 11", receivers=["good"], timeout=60) == 2
        assert waiter.is_alive()
        healed.touch()
        waiter.join(120)
        assert waited == [1]  # by a fleet that has gone on to version 2
        assert handle.wait_served("step 11", receivers=2, timeout=60) == 2


@ALL
def test_stats_say_what_a_version_took_and_are_numbers_by_name(cluster, open_for):
    model = ToyModel(blocks=2)
    agent = cluster.agent()
    cluster.receiver(agent)
    handle, publish = open_for(agent, model.tensors)
    model_bytes = sum(tensor.nbytes for tensor in model.tensors.values())
    with handle:
        assert handle.stats == {}
        publish(1)
        handle.wait_served(version=1, receivers=1, timeout=60)
        assert "lockstep/delta_bytes" not in handle.stats
        model.step()
        publish(2)
        assert handle.stats["lockstep/version"] == 2
        handle.wait_served(version=2, receivers=1, timeout=60)
        stats = {name.removeprefix("lockstep/"): value for name, value in handle.stats.items()}
        assert all(type(value) in (int, float) for value in stats.values())
        assert stats["version"] == stats["served_version"] == 2
        assert 0 <= stats["begin_seconds"] <= stats["publish_seconds"] < 60
        assert 0 <= stats["wait_seconds"] <= stats["publish_to_served_seconds"] < 60
        assert stats["bytes_copied"] == stats["model_bytes"] == model_bytes
        assert 0 < stats["delta_bytes"] < model_bytes and 0 < stats["density"] < 1
        assert stats["delta_share"] == stats["delta_bytes"] / model_bytes
        assert stats["receivers"] == stats["receivers_serving"] == 1 and stats["lag_versions"] == 0
        with pytest.raises(lockstep.StateError):
            publish(2)
        with pytest.raises(lockstep.DeadlineError):
            handle.wait_served(version=3, receivers=1, timeout=0)
        assert handle.stats == {}


def test_a_follower_is_told_the_label_of_what_is_written_into_its_memory(cluster):
    weights = torch.nn.Linear(64, 32).state_dict()
    agent = cluster.agent()
    socket = cluster.directory / "engine.sock"
    cluster.receiver(agent, engine_load="in-place", engine_socket=socket)
    with (
        agent.publisher(weights) as publisher,
        lockstep.Follower(torch.nn.Linear(64, 32), model=MODEL, socket=socket) as follower,
    ):
        for version, label in enumerate(("step 10", "step 20"), 1):
            weights = {name: tensor + 1 for name, tensor in weights.items()}
            publisher.publish(version=version, tensors=weights, label=label)
            assert publisher.wait_served(label, receivers=1, timeout=60) == version
            assert (follower.served.version, follower.served.label) == (version, label)


def test_a_wait_outlasts_an_agent_that_is_restarted_and_says_when_none_is_there(cluster):
    model = ToyModel(blocks=2)
    agent = cluster.agent()
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.tensors, label=0)
        waited = []
        waiter = threading.Thread(target=lambda: waited.append(publisher.wait_served(0, receivers=1)))
        waiter.start()
        agent.kill()
        with pytest.raises(lockstep.UnavailableError, match="not within 0.3 s: no agent answers on .*export.sock"):
            publisher.wait_served(0, receivers=1, timeout=0.3)
        agent.start()
        cluster.receiver(agent)
        waiter.join(120)
        assert waited == [1]
    with pytest.raises(lockstep.StateError, match="is closed"):
        publisher.wait_served(0, receivers=1)


def test_ctrl_c_ends_a_wait_here_and_at_the_agent_and_versions_go_on(cluster):
    model = ToyModel(blocks=2)
    agent = cluster.agent()

    def connections() -> int:
        links = []
        for fd in Path(f"/proc/{agent.process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                links.append(os.readlink(fd))
        return sum(link.startswith("socket:") for link in links)

    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.tensors)
        before = connections()

        def interrupt() -> None:
            wait_until(lambda: connections() > before, "the agent waits")
            os.kill(os.getpid(), signal.SIGINT)

        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            publisher.wait_served(version=1, receivers=1, timeout=120)
        interrupter.join()
        wait_until(lambda: connections() == before, "no wait is left at the agent")
        publisher.publish(version=2, tensors=model.tensors)


def test_a_rank_that_does_not_talk_to_the_agent_says_so():
    with lockstep.Publisher.from_stream("/no/checkpoint", model=MODEL, socket="/nowhere.sock", rank=1) as publisher:
        published = publisher.publish(version=1, tensors=iter(()), label="step 1")
        assert published and (published.version, published.label, published.bytes) == (1, "step 1", 0)
        with pytest.raises(lockstep.StateError, match="the publisher writes nothing on this rank"):
            publisher.wait_served("step 1", receivers=1)
        with pytest.raises(
            lockstep.StateError, match="wait: version 1 has no open publisher on this rank: keep it in a variable"
        ):
            published.wait(receivers=1)


@ALL
def test_a_publication_says_what_was_published_and_waits_until_it_is_served(cluster, open_for):
    model = ToyModel(blocks=2)
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    handle, publish = open_for(agent, model.tensors)
    model_bytes = sum(tensor.nbytes for tensor in model.tensors.values())
    with handle:
        assert handle.last_publication is None
        published = publish(1)
        assert handle.last_publication is published and published.run == handle.run
        assert (published.version, published.skipped, published.bytes) == (1, False, model_bytes)
        assert 0 < published.seconds < 60 and "version 1" in repr(published)
        assert published.wait(receivers=1, timeout=60) is published
        receiver.wait_for(model.tensors)
        receiver.kill()
        again = publish(2)
        with pytest.raises(lockstep.DeadlineError, match="not within 0 s"):
            again.wait(receivers=1, timeout=0)
        with pytest.raises(lockstep.StateError, match="version"):
            publish(2)
        assert handle.last_publication is again
    with pytest.raises(lockstep.StateError, match="is closed"):
        again.wait(receivers=1, timeout=0)


def test_a_fleet_that_serves_an_earlier_runs_version_does_not_count(cluster):
    model = ToyModel(blocks=2)
    agent = cluster.agent()
    receiver = cluster.receiver(agent, name="old", engine='hook:test "$LOCKSTEP_VERSION" = 7', engine_attempts=1)
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=7, tensors=model.tensors, label="a")
        publisher.wait_served("a", receivers=["old"], timeout=60)
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.tensors, label="a")
        wait_until(lambda: said(receiver)["run"] == publisher.run, "it holds the new run's")

        def told() -> bool:
            with pytest.raises(lockstep.DeadlineError) as raised:
                publisher.wait_served("a", receivers=1, timeout=0.1)
            return '"old" serves version 7 of another run, holds version 1' in str(raised.value)

        wait_until(told, "the agent is told")


def test_what_is_asked_for_is_checked(cluster):
    model = ToyModel(blocks=2)
    agent = cluster.agent()
    with agent.publisher(model.tensors) as publisher:
        for arguments, text in (
            ({"receivers": 1}, "a label or a version, one of them"),
            ({"label": 1, "version": 1, "receivers": 1}, "a label or a version, one of them"),
            ({"label": "a", "receivers": 0}, "receivers is 0"),
            ({"label": "a", "receivers": []}, "receivers is empty"),
            ({"label": "a", "receivers": ["a\nb"]}, "is no receiver's name"),
            ({"label": "a", "receivers": [1]}, "receivers is 1, of type int"),
        ):
            with pytest.raises(lockstep.BadDataError, match=text):
                publisher.wait_served(**arguments)
        start = time.monotonic()
        with pytest.raises(lockstep.DeadlineError, match='label "a", which no version has yet'):
            publisher.wait_served("a", receivers=1, timeout=0.2)
        assert time.monotonic() - start >= 0.2


def test_every_receiver_that_is_connected_is_waited_for_where_none_is_named(cluster):
    agent, model = cluster.agent(), ToyModel(blocks=2)
    seen = control.Agent(agent.address)
    handle, publish = publisher_of(agent, model.tensors)
    with handle:
        with pytest.raises(lockstep.DeadlineError, match="every connected receiver; none is connected"):
            publish(1).wait(timeout=0.1)
        with pytest.raises(lockstep.DeadlineError, match="every connected receiver; none is connected") as failed:
            seen.wait_served(timeout=0.1)
        assert failed.value.lacking == ()
        good = cluster.receiver(agent)
        bad = cluster.receiver(agent, engine="hook:echo no >&2; exit 3", engine_attempts=1)
        wait_until(lambda: len(agent.model_status()["receivers"]) == 2, "both are there")
        model.step()
        published = publish(2)
        good.wait_for(model.tensors)
        for wait in (published.wait, seen.wait_served):
            with pytest.raises(lockstep.DeadlineError) as failed:
                wait(timeout=0.5)
            assert [peer.receiver for peer in failed.value.lacking] == [bad.name]
        bad.stop()
        wait_until(lambda: seen.model().receivers[1].presence != "connected", "one is gone")
        published.wait(timeout=60)
        assert seen.wait_served(timeout=60).newest_version == 2


def test_a_rollout_that_waits_in_vain_quotes_its_receiver(cluster):
    agent, model = cluster.agent(), ToyModel(blocks=2)
    receiver = cluster.receiver(agent, control_socket=cluster.directory / "control.sock")
    handle, publish = publisher_of(agent, model.tensors)
    path = str(receiver.root / MODEL)
    with handle:
        publish(1)
        receiver.wait_for(model.tensors)
    agent.stop()
    wait_until(lambda: receiver.model_status()["last_error"], "it has an error")

    def failure(receiver_address) -> str:
        with pytest.raises(lockstep.DeadlineError, match="version 2 was not published within 0 s, version 1") as failed:
            Awaited(path, "version 2", lambda replica: replica.version == 2, 0, receiver_address).wait()
        return str(failed.value)

    def quoted() -> bool:  # its error changes while the agent stops: it drains, then its port refuses
        told = failure(f"unix:{cluster.directory / 'control.sock'}")
        assert "its receiver holds version 1, is in state " in told
        return receiver.model_status()["last_error"] in told

    wait_until(quoted, "the error of the receiver is quoted")
    assert "lockstepctl status" in failure("127.0.0.1:1")
    other = cluster.receiver(cluster.agent())
    assert "lockstepctl status" in failure(other.address)
