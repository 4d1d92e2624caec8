"""A process that is forked off a trainer, as a data loader's worker is, has no part in its parent's handles."""

import json
import os
import signal
import threading

import pytest
from harness import MODEL
from replicas import ToyModel

import lockstep
from lockstep.core import abi


def in_child(calls) -> "dict[str, str]":
    """What each of the named calls raises in a forked process, "" for nothing; a process that hangs raises here."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        outcomes = {}
        for name, call in calls.items():
            try:
                call()
                outcomes[name] = ""
            except BaseException as error:
                outcomes[name] = f"{type(error).__name__}: {error}"
        os.write(write, json.dumps(outcomes).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answers:
        text = answers.read()
    assert os.waitpid(child, 0)[1] == 0, "the child hung or crashed"
    return json.loads(text)


def refused(calls) -> None:
    for name, outcome in in_child(calls).items():
        assert outcome.startswith("StateError") and "was forked" in outcome, f"{name}: {outcome}"


@pytest.fixture
def model():
    return ToyModel(blocks=4)


@pytest.fixture
def agent(cluster):
    return cluster.agent()


@pytest.fixture
def locking():
    """Has another thread hold a handle's lock, as one does that publishes."""
    ends = threading.Event()
    threads = []

    def hold(handle) -> None:
        held = threading.Event()

        def run() -> None:
            with handle._handle.lock:
                held.set()
                ends.wait(60)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        held.wait()

    def release() -> None:
        ends.set()
        for thread in threads:
            thread.join()

    hold.release = release
    yield hold
    release()


def test_every_call_on_a_parents_publisher_is_refused_by_name_and_closing_does_nothing(agent, cluster, model, locking):
    name = next(iter(model.tensors))
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.tensors)
        publisher.begin(2)
        locking(publisher)
        refused(
            {
                "publish": lambda: publisher.publish(version=2, tensors=model.tensors),
                "begin": lambda: publisher.begin(3),
                "write": lambda: publisher.write(name, model.tensors[name]),
                "tensors_done": lambda: publisher.tensors_done([name]),
                "commit": publisher.commit,
                "abort": publisher.abort,
                "committed_version": lambda: publisher.committed_version,
            }
        )
        assert in_child({"close": publisher.close}) == {"close": ""}
        locking.release()
        for name, tensor in model.step().items():
            publisher.write(name, tensor)
        publisher.commit()
        cluster.receiver(agent).wait_for(model.tensors)


def test_the_library_itself_writes_nothing_for_a_forked_process(agent, model):
    with agent.publisher(model.tensors) as publisher:
        data = publisher.begin(1)
        position, source, _ = publisher._way._source(*next(iter(model.tensors.items())))
        offset = publisher.layout[position][1]
        data[offset : offset + source.nbytes] = bytes(source.nbytes)
        library, handle = publisher._handle.library, publisher._handle.pointer()

        def write() -> None:
            code = library.lockstep_write(handle, abi.CSource(position, source.address, source.nbytes), 1)
            raise lockstep.StateError(library.lockstep_last_error(handle).decode(), code)

        refused({"write": write})
        assert not any(data[offset : offset + source.nbytes])


def test_every_call_on_a_parents_exporter_is_refused_by_name_and_closing_does_nothing(agent, cluster, model, locking):
    options = {"socket": agent.socket, "model": MODEL, "threads": 2}
    with lockstep.Publisher.from_tensors(model.tensors, **options) as exporter:
        exporter.publish(version=1)
        locking(exporter)
        refused(
            {
                "publish": lambda: exporter.publish(version=2),
                "publish by the next number": lambda: exporter.publish(),
                "stats": lambda: exporter.stats,
                "committed_version": lambda: exporter.committed_version,
            }
        )
        assert in_child({"close": exporter.close}) == {"close": ""}  # its threads are the parent's
        locking.release()
        model.step()
        exporter.publish(version=2)
        cluster.receiver(agent).wait_for(model.tensors)


def test_a_forked_process_opens_a_publisher_of_its_own(agent, model):
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.tensors)

        def open_another() -> None:
            with agent.publisher(model.tensors, "another") as another:
                another.publish(version=1, tensors=model.tensors)

        assert in_child({"open": open_another}) == {"open": ""}
        publisher.publish(version=2, tensors=model.step())


class IntoNothing:
    def open(self, tensors) -> None: ...

    def take(self, pieces) -> None: ...

    def end(self) -> None: ...


def test_both_ends_of_a_parents_ring_are_refused_by_name_and_closing_them_does_nothing(agent, model, cluster):
    path = cluster.directory / "ring.sock"
    options = {"socket": agent.socket, "model": MODEL}
    with (
        lockstep.Publisher.from_tensors(model.tensors, **options) as exporter,
        lockstep.BucketRing(exporter, socket=path) as ring,
        lockstep.RingReader(path, IntoNothing()) as reader,
    ):

        def transfer(version: int) -> None:
            sending = threading.Thread(target=ring.send, args=[version])
            sending.start()
            assert reader.take(timeout=60).version == version
            sending.join()

        transfer(1)
        refused({"send": lambda: ring.send(2), "take": lambda: reader.take(timeout=0)})
        assert in_child({"ring": ring.close, "reader": reader.close}) == {"ring": "", "reader": ""}
        transfer(2)
