"""One end of a bucket ring stands still, or its GPU fails. The other waits for its timeout at most; a version is lost.
The buckets are in host memory; patched functions raise the errors of a GPU."""

import contextlib
import time

import pytest
from ring_peers import SECONDS, Collected, FakeReader, FakeRing, PlainPublisher, in_background, outcome

import lockstep
from lockstep.core.ring_messages import MessageType
from lockstep.engine import _ring_memory

TIMEOUT = 1.5


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ring.sock"


@pytest.fixture
def ring(path):
    with lockstep.BucketRing(PlainPublisher(), socket=path, bucket_bytes=4096, timeout=TIMEOUT) as ring:
        yield ring


def check_next_version_is_whole(ring, path):
    with lockstep.RingReader(path, Collected(), timeout=SECONDS) as reader:
        sending = in_background(ring.send, 9)
        assert reader.take(timeout=SECONDS).version == 9
        assert outcome(sending) is None


def timed(function, *arguments):
    begun = time.monotonic()
    return outcome(in_background(function, *arguments)), time.monotonic() - begun


def test_a_trainer_without_an_engine_waits_for_its_timeout_and_goes_on(ring, path):
    error, seconds = timed(ring.send, 1)
    assert isinstance(error, lockstep.UnavailableError)
    assert str(error) == f"no reader connected to {path} within {TIMEOUT} s"
    assert TIMEOUT <= seconds < SECONDS
    check_next_version_is_whole(ring, path)


@pytest.mark.parametrize("answers", [0, 1, 2, 3], ids=lambda answers: f"{answers}-buckets-taken")
def test_an_engine_that_stands_still_at_any_bucket_or_the_end_costs_the_version(ring, path, answers):
    reader = FakeReader(path)
    sending = in_background(ring.send, 1)
    reader.answer_open()
    for number in range(answers):
        reader.receive(MessageType.FULL)
        reader.send(MessageType.TAKEN, version=1, bucket=number % 2)
    error = outcome(sending)
    assert isinstance(error, lockstep.DeadlineError)
    assert str(error).startswith("version 1 was not sent: ") and "did not answer in time" in str(error)
    check_next_version_is_whole(ring, path)


def test_an_engine_that_connects_and_says_nothing_costs_the_timeout(ring, path):
    reader = FakeReader(path)
    error, seconds = timed(ring.send, 1)
    assert isinstance(error, lockstep.DeadlineError) and seconds < SECONDS
    reader.peer.close()
    check_next_version_is_whole(ring, path)


def test_an_answer_that_comes_after_the_timeout_is_not_taken_for_the_next_versions(ring, path):
    reader = FakeReader(path)
    sending = in_background(ring.send, 1)
    reader.answer_open()
    assert isinstance(outcome(sending), lockstep.DeadlineError)
    with contextlib.suppress(lockstep.UnavailableError, lockstep.AbortedError):  # the trainer has left it
        reader.send(MessageType.TAKEN, version=9, bucket=0)
    check_next_version_is_whole(ring, path)


@pytest.mark.parametrize("sent", [0, 1, 2, 3], ids=lambda sent: f"{sent}-buckets-sent")
def test_a_trainer_that_stands_still_within_a_version_ends_the_take_in_time(path, sent):
    fake = FakeRing(path)
    reader = lockstep.RingReader(path, Collected(), timeout=TIMEOUT)
    taking = in_background(reader.take, SECONDS)
    fake.accept()
    fake.open()
    fake.peer.receive([MessageType.READY], time.monotonic() + SECONDS)
    fake.send(MessageType.BEGIN, version=1)
    for number, (offset, size) in enumerate([(0, 4096), (4096, 4096), (8192, 3813)][:sent]):
        fake.send(MessageType.FULL, version=1, bucket=number % 2, offset=offset, bytes=size)
        fake.peer.receive([MessageType.TAKEN], time.monotonic() + SECONDS)
    error = outcome(taking)
    assert isinstance(error, lockstep.DeadlineError) and "did not answer in time" in str(error)
    assert reader.served is None and (sent == 0 or "the weights are a mix" in reader.error)
    reader.close()
    fake.close()


def test_a_gpu_that_fails_in_the_engine_is_told_to_the_trainer_and_leaves_a_mix(ring, path, monkeypatch):
    def fail(_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with lockstep.RingReader(path, Collected(), timeout=SECONDS) as reader:
        with monkeypatch.context() as patched:
            patched.setattr(_ring_memory.Ring, "synchronize", fail)
            sending = in_background(ring.send, 1)
            with pytest.raises(RuntimeError, match="illegal memory access"):
                reader.take(timeout=SECONDS)
            error = outcome(sending)
        assert isinstance(error, lockstep.AbortedError) and "illegal memory access" in str(error)
        assert reader.served is None and "illegal memory access" in reader.error
    check_next_version_is_whole(ring, path)
