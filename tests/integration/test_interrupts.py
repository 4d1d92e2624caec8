"""Ctrl-C in a trainer, at any moment: versions stay whole, and the next publish works.

LOCKSTEP_TEST_INTERRUPTS=500 interrupts as often, in place of 40 times.
"""

import contextlib
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from harness import MODEL, wait_until
from rank_process import RankProcess, content
from replicas import ToyModel

import lockstep

INTERRUPTS = int(os.environ.get("LOCKSTEP_TEST_INTERRUPTS", 40))
HANG_S = 5


def publisher_of(agent, tensors, model=MODEL):
    publisher = agent.publisher(tensors, model)
    return publisher, lambda version: publisher.publish(version=version, tensors=tensors)


def exporter_of(agent, tensors, model=MODEL):
    exporter = lockstep.Publisher.from_tensors(tensors, socket=agent.socket, model=model)
    return exporter, exporter.publish


class CtrlC:
    """SIGINT as Python handles it, in what ``interrupted`` calls; elsewhere it does nothing."""

    def __init__(self) -> None:
        self.caught = 0
        self._wanted = False

    def handle(self, *_) -> None:
        if self._wanted:
            raise KeyboardInterrupt

    def interrupted(self, function, after_s: "list[float]") -> None:
        """Calls it, and sends a SIGINT after so many seconds each; KeyboardInterrupt is counted."""
        main, begun = threading.get_ident(), threading.Event()

        def send() -> None:
            begun.wait()
            start = time.monotonic()
            for moment in after_s:
                time.sleep(max(0.0, start + moment - time.monotonic()))
                signal.pthread_kill(main, signal.SIGINT)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            self._wanted = True
            begun.set()
            function()
            self._wanted = False
        except KeyboardInterrupt:
            self._wanted = False  # before anything is called: the next one may be here already
            self.caught += 1
        thread.join()


@pytest.fixture
def ctrl_c(monkeypatch):
    ctrl_c = CtrlC()
    # One that comes in a destructor or callback is lost, as Python has it; pytest's own hook would be interrupted by the next.
    report = sys.unraisablehook
    monkeypatch.setattr(
        sys, "unraisablehook", lambda lost: None if lost.exc_type is KeyboardInterrupt else report(lost)
    )
    before = signal.signal(signal.SIGINT, ctrl_c.handle)
    yield ctrl_c
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("open_for", [publisher_of, exporter_of])
def test_ctrl_c_at_any_moment_of_a_publish_leaves_the_next_one_to_work(cluster, ctrl_c, open_for):
    randomness = random.Random(15)
    model = ToyModel(blocks=8)
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    handle, publish = open_for(agent, model.tensors)
    with handle:
        publish(1)
        took_s = 0.02
        for version in range(2, 2 * INTERRUPTS + 2, 2):
            model.step()
            moments = sorted(randomness.uniform(0, 1.5 * took_s) for _ in range(randomness.randint(1, 3)))
            start = time.monotonic()
            ctrl_c.interrupted(lambda version=version: publish(version), moments)
            start, interrupted_s = time.monotonic(), time.monotonic() - start
            publish(version + 1)
            took_s = time.monotonic() - start
            assert max(took_s, interrupted_s) < HANG_S, f"version {version}"
        receiver.wait_for(model.tensors)
    assert ctrl_c.caught > INTERRUPTS // 4


def in_place_of(agent, tensors):
    publisher = agent.publisher(tensors)

    def publish(version: int) -> None:
        publisher.begin(version)
        for name, tensor in tensors.items():
            publisher.write(name, tensor)
        publisher.commit()

    return publisher, publish


@pytest.mark.parametrize("open_for", [publisher_of, exporter_of, in_place_of])
def test_after_a_ctrl_c_it_is_said_truly_whether_the_version_is_committed(cluster, ctrl_c, open_for):
    randomness = random.Random(15)
    model = ToyModel(blocks=1)
    agent = cluster.agent()
    handle, publish = open_for(agent, model.tensors)
    with handle:
        publish(1)
        took_s, committed, lies = 0.005, 1, []
        for version in range(2, 40 * INTERRUPTS, 2):  # on a busy machine most come too late
            if ctrl_c.caught >= INTERRUPTS:
                break
            ctrl_c.interrupted(lambda version=version: publish(version), [randomness.uniform(0, took_s)])
            said = handle.last_publication.version
            with contextlib.suppress(lockstep.StateError):
                handle.abort()  # what begin, write and commit leave
            start = time.monotonic()
            publish(version + 1)
            took_s = time.monotonic() - start
            before, committed = committed, agent.model_status()["versions_committed"]
            if (said == version) != (committed - before == 2):
                lies.append(version)
        assert not lies, f"{len(lies)} of {ctrl_c.caught} interrupted publishes"
    assert ctrl_c.caught >= INTERRUPTS


def test_a_second_ctrl_c_ends_the_wait_for_a_commits_answer_and_its_outcome_is_said_to_be_unknown(cluster, ctrl_c):
    model = ToyModel(blocks=1)
    agent = cluster.agent()
    publisher, publish = in_place_of(agent, model.tensors)
    with publisher:
        publish(1)
        publisher.begin(2)
        for name, tensor in model.tensors.items():
            publisher.write(name, tensor)
        stop(agent)
        start = time.monotonic()
        ctrl_c.interrupted(publisher.commit, [0.2, 0.8])
        assert ctrl_c.caught == 1 and 0.7 < time.monotonic() - start < HANG_S
        with pytest.raises(lockstep.StateError, match="whether version 2 is committed is not known"):
            publisher.last_publication  # noqa: B018
        agent.signal(signal.SIGCONT)
        publish(3)
        assert publisher.last_publication.version == 3
        agent.wait_for(3)


def test_ctrl_c_at_any_moment_of_opening_leaves_the_next_to_open(cluster, ctrl_c):
    randomness = random.Random(15)
    tensors = ToyModel(blocks=8).tensors
    agent = cluster.agent()
    agent.publisher(tensors).close()
    for _ in range(20 * INTERRUPTS):  # on a busy machine most come too late
        if ctrl_c.caught >= INTERRUPTS // 2:
            break
        ctrl_c.interrupted(lambda: agent.publisher(tensors).close(), [randomness.uniform(0, 0.01)])
    with agent.publisher(tensors) as publisher:
        publisher.publish(version=1, tensors=tensors)
    assert ctrl_c.caught >= INTERRUPTS // 2


def stop(agent) -> None:
    """Until it gets SIGCONT."""
    agent.signal(signal.SIGSTOP)
    threads = Path(f"/proc/{agent.process.pid}/task")
    wait_until(lambda: all(") T " in (t / "stat").read_text() for t in threads.iterdir()), "all of it stands still")


def ended(ctrl_c, function) -> None:
    """Ctrl-C ends what would wait for minutes."""
    caught, start = ctrl_c.caught, time.monotonic()
    ctrl_c.interrupted(function, [0.3])
    assert ctrl_c.caught == caught + 1
    assert time.monotonic() - start < HANG_S


@pytest.mark.parametrize("open_for", [publisher_of, exporter_of])
def test_ctrl_c_ends_what_waits_for_a_stopped_agent_and_the_next_publish_works(cluster, ctrl_c, open_for):
    model = ToyModel(blocks=8)
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    handle, publish = open_for(agent, model.tensors)
    another, publish_another = open_for(agent, model.tensors, "another")
    with handle, another:
        publish(1)
        publish_another(1)
        stop(agent)
        ended(ctrl_c, lambda: publish(2))
        ended(ctrl_c, lambda: publish(3))  # on a connection of its own
        ended(ctrl_c, lambda: open_for(agent, model.tensors, "a third"))
        start = time.monotonic()
        another.close()
        assert time.monotonic() - start < HANG_S
        agent.signal(signal.SIGCONT)
        model.step()
        publish(4)
        receiver.wait_for(model.tensors)


@pytest.mark.parametrize("open_for", [publisher_of, exporter_of])
def test_ctrl_c_ends_the_wait_for_an_agent_that_is_away_and_the_next_publish_works(cluster, ctrl_c, open_for):
    model = ToyModel(blocks=8)
    agent = cluster.agent()
    handle, publish = open_for(agent, model.tensors)
    with handle:
        publish(1)
        agent.kill()
        ended(ctrl_c, lambda: publish(2))
        ended(ctrl_c, lambda: open_for(agent, model.tensors))
        agent.start()
        model.step()
        publish(3)
        cluster.receiver(agent).wait_for(model.tensors)


def test_ctrl_c_ends_the_wait_for_another_rank_and_the_next_publish_works(cluster, ctrl_c):
    shapes = {"a": [100], "b": [100]}
    agent = cluster.agent()

    def part(version: int) -> dict:
        return {"a": content("a", version, shapes["a"])}

    metas = [lockstep.TensorMeta(name, "F32", tuple(shape)) for name, shape in shapes.items()]
    with (
        RankProcess(agent.socket, MODEL, shapes, 1, 2, ["b"]) as other,
        agent.publisher(metas, rank=0, ranks=2, owns=["a"]) as publisher,
    ):
        publisher.publish(version=1, tensors=part(1))
        other.write(1, ["b"], 1)
        ended(ctrl_c, lambda: publisher.publish(version=2, tensors=part(2)))  # waits for version 1
        other.call("commit")
        agent.wait_for(1)
        publisher.publish(version=3, tensors=part(3))
        other.write(3, ["b"], 3)
        other.call("commit")
        agent.wait_for(3)


def test_what_any_signals_handler_raises_ends_a_wait_and_comes_out(cluster):
    tensors = ToyModel(blocks=8).tensors
    agent = cluster.agent()

    def handle(*_) -> None:
        raise LookupError("a handler's own")

    before = signal.signal(signal.SIGALRM, handle)
    try:
        with agent.publisher(tensors) as publisher:
            stop(agent)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            start = time.monotonic()
            with pytest.raises(LookupError, match="a handler's own"):
                publisher.begin(1)
            assert time.monotonic() - start < HANG_S
            agent.signal(signal.SIGCONT)
            publisher.publish(version=2, tensors=tensors)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_handle_that_a_signals_handler_closes_ends_its_call_and_leaves_the_agent(cluster):
    tensors = ToyModel(blocks=2).tensors
    agent = cluster.agent()
    publisher = agent.publisher(tensors)

    def handle(*_) -> None:
        with pytest.raises(lockstep.StateError, match="a call is under way"):
            publisher.abort()
        publisher.close()

    before = signal.signal(signal.SIGALRM, handle)
    try:
        stop(agent)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        start = time.monotonic()
        with pytest.raises(lockstep.StateError, match="was closed meanwhile"):
            publisher.publish(version=1, tensors=tensors)
        assert time.monotonic() - start < HANG_S
        agent.signal(signal.SIGCONT)
        with agent.publisher(tensors) as again:
            again.publish(version=1, tensors=tensors)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
