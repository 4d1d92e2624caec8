"""Both ends of a bucket ring as tests drive them by hand, over given bytes."""

import contextlib
import ctypes
import fcntl
import json
import os
import socket
import threading
import time

import pytest
import torch

import lockstep
from lockstep.core.ring_messages import Message, MessageType, Peer
from lockstep.core.tensors import TensorMeta

RUN = "00112233445566778899aabbccddeeff"
TENSORS = [
    ("a", "BF16", [3000], 0),
    ("empty", "BF16", [0, 4], 6000),
    ("b", "F32", [1500], 6000),
    ("c", "U8", [5], 12000),
]
DATA = bytes(torch.randint(0, 256, (12005,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)).tolist())
SECONDS = 60  # that an end may take on a busy machine


class PlainPublisher:
    """What a ring needs of a publisher, over given bytes."""

    run = RUN
    layout = [(TensorMeta(name, dtype, tuple(shape)), offset) for name, dtype, shape, offset in TENSORS]

    def __init__(self):
        self.filled = []

    @contextlib.contextmanager
    def _filling(self):
        yield self._fill

    def _fill(self, offset, size, address):
        ctypes.memmove(address, DATA[offset : offset + size], size)
        self.filled.append((offset, size))


class Collected:
    """Keeps what it is given: the bytes of each tensor."""

    def __init__(self):
        self.bytes, self.opened, self.ended = {}, [], 0

    def open(self, tensors):
        self.opened = [meta.name for meta in tensors]

    def take(self, pieces):
        for piece in pieces:
            held = self.bytes.setdefault(piece.tensor.name, b"")
            assert piece.first * piece.values.element_size() == len(held) % piece.tensor.nbytes
            self.bytes[piece.tensor.name] = held + bytes(piece.values.view(torch.uint8).tolist())

    def end(self):
        self.ended += 1


def in_background(function, *arguments):
    """Calls the function in a thread. `outcome` of the thread is then what the function returned or raised."""

    def run():
        try:
            thread.outcome = function(*arguments)
        except Exception as error:
            thread.outcome = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def outcome(thread):
    thread.join(SECONDS)
    assert not thread.is_alive()
    return thread.outcome


class FakeReader:
    """A reader that tests drive by hand."""

    def __init__(self, path):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(str(path))
        self.peer = Peer(connection, "the ring")
        self.connection = connection

    def send(self, kind, **fields):
        self.peer.send(Message(kind, **fields), time.monotonic() + SECONDS)

    def receive(self, kind):
        return self.peer.receive([kind], time.monotonic() + SECONDS)

    def nothing_comes(self):
        with pytest.raises(lockstep.DeadlineError, match="sent nothing in time"):
            self.peer.wait(time.monotonic() + 0.2)

    def answer_open(self):
        self.opened = self.receive(MessageType.OPEN)
        self.send(MessageType.READY)
        self.receive(MessageType.BEGIN)


class FakeRing:
    """A trainer that tests drive by hand."""

    def __init__(self, path):
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()

    def accept(self):
        self.peer = Peer(self._listener.accept()[0], "the reader")

    def send(self, kind, **fields):
        self.peer.send(Message(kind, **fields), time.monotonic() + SECONDS)

    def open(self, sizes=(4112, 4112), seals=fcntl.F_SEAL_SHRINK, **changes):
        body = {
            "run": RUN,
            "bytes": len(DATA),
            "bucket_bytes": 4096,
            "buckets": [{"kind": "host"}, {"kind": "host"}],
            "tensors": TENSORS,
        }
        fds = []
        for size in sizes:
            fds.append(os.memfd_create("bucket", os.MFD_ALLOW_SEALING))
            os.ftruncate(fds[-1], size)
            fcntl.fcntl(fds[-1], fcntl.F_ADD_SEALS, seals)
        self.send(MessageType.OPEN, body=json.dumps({**body, **changes}).encode(), fds=fds)
        for fd in fds:
            os.close(fd)

    def close(self):
        self._listener.close()
