"""A bucket ring's messages, its two ends together, and its trainer's end against readers that are wrong, hang or leave."""

import os
import re

import pytest
from harness import ROOT
from ring_peers import DATA, RUN, SECONDS, Collected, FakeReader, PlainPublisher, in_background, outcome

import lockstep
from lockstep.core.ring_messages import RING_FORMAT, Message, MessageType
from lockstep.engine import Served
from lockstep.export._ring_buckets import parts_of


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ring.sock"


# ---- the format ----


def test_the_example_of_the_format_is_what_is_sent():
    text = (ROOT / "python/FORMAT.md").read_text()
    dump = re.search(r"```hex full\n(.*?)```", text, re.S)[1]
    example = bytes.fromhex("".join(line[4:] for line in dump.splitlines()))
    assert Message(MessageType.FULL, 7, 1, 8192, 4096).encode() == example and len(example) == RING_FORMAT.header_bytes


def test_parts_keep_tensors_that_fit_whole_and_cut_others_between_elements():
    metas = PlainPublisher.layout
    assert parts_of(metas, 64 << 10) == [(0, 12005)]
    assert parts_of(metas, 7000) == [(0, 6000), (6000, 6005)]
    assert parts_of(metas, 6002) == [(0, 6000), (6000, 6000), (12000, 5)]
    assert parts_of(metas, 4097) == [(0, 4096), (4096, 4096), (8192, 3813)]


# ---- both ends ----


@pytest.mark.parametrize("buckets", [1, 2, 3, 8])
def test_every_byte_arrives_once_and_in_order_whatever_the_number_of_buckets(path, buckets):
    exporter, into = PlainPublisher(), Collected()
    with lockstep.BucketRing(exporter, socket=path, bucket_bytes=4096, buckets=buckets) as ring:
        with lockstep.RingReader(path, into) as reader:
            for version in (1, 2):
                sending = in_background(ring.send, version)
                assert reader.take(timeout=SECONDS) == Served(RUN, version)
                assert outcome(sending) is None
    assert into.opened == ["a", "empty", "b", "c"] and into.ended == 2
    assert into.bytes == {"a": 2 * DATA[:6000], "b": 2 * DATA[6000:12000], "c": 2 * DATA[12000:]}


def test_a_reader_that_looks_finds_nothing_keeps_its_version_and_takes_the_next_one_later(path):
    reader = lockstep.RingReader(path, Collected())
    with pytest.raises(lockstep.DeadlineError, match="no trainer's ring was at"):
        reader.take(timeout=0)
    with lockstep.BucketRing(PlainPublisher(), socket=path) as ring:
        with pytest.raises(lockstep.DeadlineError, match="sent nothing in time"):
            reader.take(timeout=0)
        sending = in_background(ring.send, 5)
        reader.take(timeout=SECONDS)
        assert outcome(sending) is None
        with pytest.raises(lockstep.DeadlineError, match="sent nothing in time"):
            reader.take(timeout=0.05)
        assert reader.served == Served(RUN, 5) and reader.error is None
    with lockstep.BucketRing(PlainPublisher(), socket=path) as ring:  # the trainer was started again
        sending = in_background(ring.send, 6)
        assert reader.take(timeout=SECONDS) == Served(RUN, 6)
        assert outcome(sending) is None
    reader.close()
    with pytest.raises(lockstep.StateError, match="the reader is closed"):
        reader.take()


def test_a_reader_that_went_away_between_versions_is_not_waited_for(path):
    with lockstep.BucketRing(PlainPublisher(), socket=path, timeout=SECONDS) as ring:
        for version in (1, 2):
            with lockstep.RingReader(path, Collected()) as reader:
                sending = in_background(ring.send, version)
                assert reader.take(timeout=SECONDS).version == version
                assert outcome(sending) is None


# ---- a ring against readers ----


@pytest.mark.parametrize("buckets", [1, 2])
def test_as_many_parts_are_filled_ahead_as_there_are_buckets_and_no_more(path, buckets):
    exporter = PlainPublisher()
    with lockstep.BucketRing(exporter, socket=path, bucket_bytes=4096, buckets=buckets) as ring:
        reader = FakeReader(path)
        sending = in_background(ring.send, 1)
        reader.answer_open()
        for number in range(buckets):
            assert reader.receive(MessageType.FULL).bucket == number
        reader.nothing_comes()
        assert len(exporter.filled) == buckets
        reader.send(MessageType.TAKEN, version=1, bucket=0)
        assert reader.receive(MessageType.FULL).bucket == 0
        assert len(exporter.filled) == buckets + 1
        reader.peer.close()
        assert isinstance(outcome(sending), lockstep.UnavailableError)


def test_buckets_are_sealed_so_that_a_reader_cannot_take_memory_from_the_trainer(path):
    with lockstep.BucketRing(PlainPublisher(), socket=path, bucket_bytes=4096) as ring:
        reader = FakeReader(path)
        sending = in_background(ring.send, 1)
        reader.answer_open()
        assert len(reader.opened.fds) == 2
        for fd in reader.opened.fds:
            with pytest.raises(PermissionError):
                os.ftruncate(fd, 0)
            os.close(fd)
        reader.peer.close()
        outcome(sending)


@pytest.mark.parametrize(
    "answer, kind, text",
    [
        ({"kind": MessageType.TAKEN, "version": 1, "bucket": 1}, lockstep.ProtocolError, "bucket 1 of version 1; due"),
        ({"kind": MessageType.TAKEN, "version": 2, "bucket": 0}, lockstep.ProtocolError, "bucket 0 of version 2; due"),
        ({"kind": MessageType.WHOLE, "version": 1}, lockstep.ProtocolError, "sent WHOLE, not TAKEN"),
        ({"kind": MessageType.TAKEN, "version": 1, "body": b"x"}, lockstep.ProtocolError, "TAKEN with 1 bytes"),
        ({"kind": MessageType.FAILED, "body": b"no \xff room"}, lockstep.AbortedError, "failed: no \ufffd room"),
    ],
)
def test_a_reader_that_answers_wrongly_costs_the_version_and_no_more(path, answer, kind, text):
    with lockstep.BucketRing(PlainPublisher(), socket=path, bucket_bytes=4096, timeout=SECONDS) as ring:
        reader = FakeReader(path)
        sending = in_background(ring.send, 1)
        reader.answer_open()
        reader.send(**answer)
        error = outcome(sending)
        assert type(error) is kind and str(error).startswith("version 1 was not sent: ") and text in str(error)
        with lockstep.RingReader(path, Collected()) as another:
            sending = in_background(ring.send, 1)
            assert another.take(timeout=SECONDS).version == 1
            assert outcome(sending) is None


def test_noise_is_refused_and_a_fill_that_fails_is_reported_to_the_reader(path):
    exporter = PlainPublisher()
    with lockstep.BucketRing(exporter, socket=path, bucket_bytes=4096, timeout=SECONDS) as ring:
        reader = FakeReader(path)
        sending = in_background(ring.send, 1)
        reader.receive(MessageType.OPEN)
        reader.connection.sendall(b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n")
        assert isinstance(outcome(sending), lockstep.ProtocolError)

        def refuse(offset, size, address):
            raise lockstep.BadDataError("a tensor moved")

        exporter._fill = refuse
        reader = FakeReader(path)
        sending = in_background(ring.send, 2)
        reader.answer_open()
        with pytest.raises(lockstep.AbortedError, match="version 2: a tensor moved"):
            reader.receive(MessageType.FULL)
        assert isinstance(outcome(sending), lockstep.BadDataError)
