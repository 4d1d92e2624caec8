"""A bucket ring's reader against trainers that break the protocol, hang, leave, or are another user's."""

import json
import os
import subprocess
import tempfile
import time
from types import SimpleNamespace

import pytest
import torch
from ring_peers import RUN, SECONDS, Collected, FakeRing, PlainPublisher, in_background, outcome

import lockstep
from lockstep.core.ring_messages import MessageType
from lockstep.engine import Served
from lockstep.engine._ring_memory import Ring, mapped
from lockstep.export._ring_buckets import CudaBucket


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ring.sock"


@pytest.fixture
def fake(path):
    fake = FakeRing(path)
    yield fake
    fake.close()


@pytest.fixture
def reader(path):
    with lockstep.RingReader(path, Collected(), timeout=SECONDS) as reader:
        yield reader


A, B = ["a", "BF16", [3000], 0], ["b", "U8", [6005], 6000]


@pytest.mark.parametrize(
    "fault",
    [
        {"sizes": (4112, 4111)},
        {"sizes": (4112,)},
        {"sizes": (4112, 4112, 4112)},
        {"sizes": (), "buckets": []},
        {"sizes": (4112,) * 9, "buckets": [{"kind": "host"}] * 9},
        {"seals": 0},
        {"buckets": [{"kind": "host"}, {"kind": "cuda"}]},
        {"sizes": (), "buckets": [{"kind": "cuda"}] * 2},
        {"sizes": (), "buckets": [{"kind": "cuda", "bytes": 5000, "offset": 0, "device": "GPU-none"}] * 2},
        {"sizes": (), "buckets": [{"kind": "cuda", "bytes": 10, "offset": 0, "device": "GPU-none"}] * 2},
        {"buckets": "ab"},
        {"bucket_bytes": -1},
        {"bucket_bytes": True},
        {"bytes": 12004},
        {"bytes": 1 << 60},
        {"bytes": "12005"},
        {"run": "0"},
        {"run": None},
        {"tensors": [A]},
        {"tensors": [A, ["a", *B[1:]]]},
        {"tensors": [B, A]},
        {"tensors": [A, ["b", "U8", [6005], 6001]]},
        {"tensors": [["a", "BF17", [3000], 0], B]},
        {"tensors": [["a", "F6_E2M3", [8000], 0], B]},
        {"tensors": [["a", "BF16", [-3000], 0], B]},
        {"tensors": [["a", "BF16", [3000.0], 0], B]},
        {"tensors": [["a", "BF16", [1] * 17 + [3000], 0], B]},
        {"tensors": [[7, "BF16", [3000], 0], B]},
        {"tensors": 5},
    ],
)
def test_a_ring_that_is_impossible_is_refused_before_anything_is_taken(fake, reader, fault):
    taking = in_background(reader.take, SECONDS)
    fake.accept()
    fake.open(**fault)
    error = outcome(taking)
    assert type(error) is lockstep.ProtocolError and "description of its ring cannot be used" in str(error)
    with pytest.raises(lockstep.AbortedError, match="cannot be used"):
        fake.peer.receive([MessageType.READY], time.monotonic() + SECONDS)
    assert reader.served is None and reader.error is None


PARTS = [(0, 4096), (4096, 4096), (8192, 3813)]


@pytest.mark.parametrize(
    "faults, text",
    [
        ([{"bucket": 1}], "due are those from 0 on of version 1 in bucket 0"),
        ([{"offset": 2}], "due are those from 0 on"),
        ([{"version": 2}], "due are those from 0 on of version 1"),
        ([{"bytes": 4097}], "cannot have 4097 bytes"),
        ([{"bytes": 0}], "cannot have 0 bytes"),
        ([{"bytes": 4095}], 'cuts an element of tensor "a" at byte 4095'),
        ([{}, {"offset": 0}], "due are those from 4096 on of version 1 in bucket 1"),
        ([{}, {}, {"bytes": 3814}], "cannot have 3814 bytes"),
        ([{}, {"kind": MessageType.END}], "sent END, not FULL"),
        ([{}, {}, {}, {"kind": MessageType.FULL}], "sent FULL, not END"),
        ([{}, {}, {}, {"kind": MessageType.END, "version": 2}], "the end of another version"),
        ([{}, None], "closed the connection"),
        ([{}, {}, {}, None], "closed the connection"),
    ],
)
def test_a_ring_that_breaks_the_protocol_or_leaves_within_a_version_leaves_no_version(fake, path, faults, text):
    reader = lockstep.RingReader(path, Collected(), timeout=SECONDS)
    taking = in_background(reader.take, SECONDS)
    fake.accept()
    fake.open()
    fake.peer.receive([MessageType.READY], time.monotonic() + SECONDS)
    fake.send(MessageType.BEGIN, version=1)
    for number, fault in enumerate(faults):
        if fault is None:
            fake.peer.close()
            break
        offset, size = PARTS[number] if number < len(PARTS) else (0, 0)
        message = {
            "kind": MessageType.FULL,
            "version": 1,
            "bucket": number % 2,
            "offset": offset,
            "bytes": size,
            **fault,
        }
        fake.send(**message)
        if not fault:
            fake.peer.receive([MessageType.TAKEN], time.monotonic() + SECONDS)
    error = outcome(taking)
    assert isinstance(error, lockstep.Error) and text in str(error)
    assert reader.served is None
    taken = any(fault == {} for fault in faults)
    assert reader.error == f"version 1 broke off, the weights are a mix: {error}" or not taken
    reader.close()


def test_a_version_comes_with_the_label_that_its_trainer_gave_it(path):
    with (
        lockstep.RingReader(path, Collected(), timeout=SECONDS) as reader,
        lockstep.BucketRing(PlainPublisher(), socket=path) as ring,
    ):
        for version, label, expected in ((1, 0, "0"), (2, None, ""), (3, "größe 7", "größe 7")):
            sending = in_background(ring.send, version, label)
            assert reader.take(timeout=SECONDS).label == expected == reader.served.label
            assert outcome(sending) is None
        with pytest.raises(lockstep.BadDataError, match="label is 'a.nb'; give text of at most 64 bytes"):
            ring.send(4, "a\nb")


def test_a_version_that_ends_before_its_first_part_leaves_the_one_before_served(path):
    with lockstep.RingReader(path, Collected(), timeout=SECONDS) as reader:
        with lockstep.BucketRing(PlainPublisher(), socket=path) as ring:
            sending = in_background(ring.send, 1)
            reader.take(timeout=SECONDS)
            assert outcome(sending) is None
        fake = FakeRing(path)
        taking = in_background(reader.take, SECONDS)
        fake.accept()
        fake.open()
        fake.peer.receive([MessageType.READY], time.monotonic() + SECONDS)
        fake.send(MessageType.BEGIN, version=2)
        fake.peer.close()
        assert isinstance(outcome(taking), lockstep.UnavailableError)
        assert reader.served == Served(RUN, 1) and reader.error is None
        fake.close()


def test_what_a_bucket_on_a_gpu_is_shared_by_comes_back_as_pytorch_gave_it(monkeypatch):
    given = (3, b"\x00c" + b"h" * 64, 8192, 4096, b"/torch_1_2_3", 5, b"e" * 64, True)
    uuids = ["someone-else", "ours"]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=uuids[index % 2]))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    opened = []

    def new_shared(*arguments):
        opened.append(arguments)
        return torch.arange(32, dtype=torch.uint8).repeat(256).untyped_storage()

    monkeypatch.setattr(torch.UntypedStorage, "_new_shared_cuda", new_shared, raising=False)
    bucket = object.__new__(CudaBucket)
    bucket._memory = SimpleNamespace(untyped_storage=lambda: SimpleNamespace(_share_cuda_=lambda: given))
    description, fd = bucket.shared()
    (memory,) = mapped(json.loads(json.dumps([description])), 4112, [])
    assert fd is None and opened == [(1, *given[1:])]  # the same GPU has another number in this process
    assert memory.tolist() == [value % 32 for value in range(4112)]


def test_a_bucket_on_a_gpu_is_let_go_when_the_whole_gpu_is_done_with_it(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    ring = object.__new__(Ring)
    ring.buckets = [SimpleNamespace(device=torch.device("cuda", 1))]
    ring.synchronize()
    assert waited == [torch.device("cuda", 1)]
    ring.buckets = [torch.zeros(1)]
    ring.synchronize()
    assert len(waited) == 1


LISTENS = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print(flush=True)
listener.accept()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_a_ring_of_another_user_gets_nothing():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        path = f"{folder}/theirs.sock"
        command = ["/usr/bin/python3", "-c", LISTENS, path]
        with subprocess.Popen(command, user=65534, stdout=subprocess.PIPE, cwd="/") as other_user:
            other_user.stdout.readline()
            with pytest.raises(lockstep.PermissionDeniedError, match="is user 65534's"):
                lockstep.RingReader(path, Collected()).take(timeout=SECONDS)
            other_user.kill()
