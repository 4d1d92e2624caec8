"""BucketRing: a trainer gives versions to an engine on its host, in host or GPU memory, bucket by bucket."""

import contextlib
import errno
import json
import os
import socket
import stat
import threading
import time
from typing import Any, Callable

from lockstep.core import arguments
from lockstep.core.errors import BadDataError, Error, PermissionDeniedError, ProtocolError, StateError, UnavailableError
from lockstep.core.forked import FORKED, close_after_fork
from lockstep.core.ring_messages import ALIGN, MAX_BUCKETS, Message, MessageType, Peer
from lockstep.export._publisher import Publisher
from lockstep.export._ring_buckets import CudaBucket, HostBucket, parts_of

# A bucket in host memory should stay in a cache between the two ends; a GPU is done with that before a message travels.
DEFAULT_BUCKET_BYTES = 4 << 20
DEFAULT_CUDA_BUCKET_BYTES = 64 << 20
MIN_BUCKET_BYTES = 4 << 10


class BucketRing:
    """Two buckets, one of which is filled with the next part of the model while a reader takes the other.

    For a rank that holds the whole model, with one engine process on the same host that has a ``lockstep.RingReader``;
    what is sent are the bytes that ``publisher.publish`` would publish. Nothing is sent but in ``send``, and by the
    thread that calls it.

    Args:
        publisher: of this rank, as ``Publisher.from_fsdp`` and its like make it. It stays the caller's, and must live as long as versions are sent.
        socket: where the reader connects; made here, for this user only.
        bucket_bytes: of each bucket; 0: 4 MiB, 64 MiB on a GPU. No more is taken than the model has.
        buckets: how many; with 1 filling and taking alternate.
        device: None: host memory. A CUDA device: buckets are there, and go to the reader by CUDA IPC; needs PyTorch.
        timeout: seconds to wait for a reader, and for each of its answers.

    Raises:
        BadDataError: the model is empty, or an argument out of its bounds.
        ResourceExhaustedError: there is no memory for the buckets.
        StateError: another process listens on the socket.
    """

    def __init__(
        self,
        publisher: Publisher,
        *,
        socket: "str | os.PathLike[str]",
        bucket_bytes: int = 0,
        buckets: int = 2,
        device: Any = None,
        timeout: float = 60.0,
    ) -> None:
        bucket_bytes = bucket_bytes or (DEFAULT_BUCKET_BYTES if device is None else DEFAULT_CUDA_BUCKET_BYTES)
        if bucket_bytes < MIN_BUCKET_BYTES:
            raise BadDataError(f"bucket_bytes is {bucket_bytes}; it must be at least {MIN_BUCKET_BYTES}")
        if not 1 <= buckets <= MAX_BUCKETS:
            raise BadDataError(f"buckets is {buckets}; it must be from 1 to {MAX_BUCKETS}")
        self._publisher = publisher
        self._timeout = timeout
        self._path = os.fspath(socket)
        self._lock = threading.Lock()
        self._reader: "Peer | None" = None
        tensors = publisher.layout
        self._data_bytes = sum(meta.nbytes for meta, _ in tensors)
        if self._data_bytes == 0:
            raise BadDataError("the model has no bytes to send")
        self._parts = parts_of(tensors, bucket_bytes)
        self._bucket_bytes = max(size for _, size in self._parts)
        kind = HostBucket if device is None else lambda size: CudaBucket(size, device)
        self._buckets = [kind(self._bucket_bytes + ALIGN) for _ in range(buckets)]
        self._tensors = [[meta.name, meta.dtype, list(meta.shape), offset] for meta, offset in tensors]
        self._listener: Any = _listen(self._path)
        self._closed = "is closed"
        close_after_fork(self)

    def send(self, version: int, label: "str | int | None" = None) -> None:
        """Gives ``version`` to the reader; returns when its engine has all of it. Weights must not change meanwhile.
        ``label`` as for ``Publisher.publish``.

        The reader may be another one than the last time, of an engine that was started again. After an error the engine
        does not have the version, and its reader reports a mix; the next ``send``, also of the same version, works once
        there is a reader.

        Raises:
            BadDataError: this rank does not hold the whole model, or the model is not what it was.
            UnavailableError: no reader connected, or it is gone.
            DeadlineError: the reader did not answer in time.
            AbortedError: the reader failed; the text has its reason: parameters that do not fit, its engine's failure.
        """
        version, name = arguments.version_number(version), arguments.label(label)
        with self._lock:
            if self._listener is None:
                raise StateError(f"the ring {self._closed}")
            reader = self._present_reader()
            try:
                with self._publisher._filling() as fill:
                    self._send(reader, version, name, fill)
            except BaseException as error:  # its engine has part of the version, and must not take it for all
                self._reader = None
                reader.fail(f"version {version}: {str(error) or repr(error)}")
                if isinstance(error, Error):
                    raise type(error)(f"version {version} was not sent: {error}") from error
                raise

    def close(self) -> None:
        """Ends the reader's connection; its engine keeps the version that it has."""
        with self._lock:
            if self._listener is None:
                return
            if self._reader is not None:
                self._reader.close()
            self._listener.close()
            self._listener = self._reader = None
            self._buckets = []
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def __enter__(self) -> "BucketRing":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _close_after_fork(self) -> None:
        self._lock = threading.Lock()
        self._closed = FORKED
        if self._reader is not None:
            self._reader.drop()
        if self._listener is not None:
            self._listener.close()
        self._listener = self._reader = None

    def _send(self, reader: Peer, version: int, label: bytes, fill: "Callable[[int, int, int], None]") -> None:
        reader.send(Message(MessageType.BEGIN, version, body=label), self._deadline())
        taken = 0
        for number, (offset, size) in enumerate(self._parts):
            index = number % len(self._buckets)
            if number >= len(self._buckets):
                self._await_taken(reader, version, taken)
                taken += 1
            fill(offset, size, self._buckets[index].address + offset % ALIGN)
            reader.send(Message(MessageType.FULL, version, index, offset, size), self._deadline())
        for number in range(taken, len(self._parts)):
            self._await_taken(reader, version, number)
        reader.send(Message(MessageType.END, version), self._deadline())
        _check(reader.receive([MessageType.WHOLE], self._deadline()), version, 0)

    def _await_taken(self, reader: Peer, version: int, number: int) -> None:
        _check(reader.receive([MessageType.TAKEN], self._deadline()), version, number % len(self._buckets))

    def _present_reader(self) -> Peer:
        """The reader of the last version, or one that has connected since."""
        if self._reader is not None and self._reader.has_sent_something():  # unasked: it is gone
            self._reader.close()
            self._reader = None
        deadline = self._deadline()
        while self._reader is None:
            self._listener.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                connection, _ = self._listener.accept()
            except socket.timeout:
                raise UnavailableError(f"no reader connected to {self._path} within {self._timeout:g} s") from None
            with contextlib.suppress(UnavailableError, PermissionDeniedError):  # gone again, or another user
                self._reader = self._opened(connection)
        return self._reader

    def _opened(self, connection: socket.socket) -> Peer:
        peer = Peer(connection, f"the reader on {self._path}")
        try:
            buckets = [bucket.shared() for bucket in self._buckets]
            body = {
                "run": self._publisher.run,
                "bytes": self._data_bytes,
                "bucket_bytes": self._bucket_bytes,
                "buckets": [description for description, _ in buckets],
                "tensors": self._tensors,
            }
            fds = [fd for _, fd in buckets if fd is not None]
            encoded = json.dumps(body, separators=(",", ":")).encode()
            peer.send(Message(MessageType.OPEN, body=encoded, fds=fds), self._deadline())
            peer.receive([MessageType.READY], self._deadline())
        except BaseException:
            peer.close()
            raise
        return peer

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout


def _check(answer: Message, version: int, bucket: int) -> None:
    if (answer.version, answer.bucket) != (version, bucket):
        raise ProtocolError(
            f"the reader sent {answer.type.name} of bucket {answer.bucket} of version {answer.version}; due is bucket "
            f"{bucket} of version {version}"
        )


def _listen(path: str) -> socket.socket:
    """A socket at ``path`` for this user; one that a dead trainer left there is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            listener.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_left_over(path):
                raise
            os.unlink(path)
            listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen()
    except OSError as error:
        listener.close()
        raise StateError(f"no ring can be made at {path}: {error}") from error
    return listener


def _is_left_over(path: str) -> bool:
    """Whether it is a socket on which no process listens."""
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == errno.ECONNREFUSED
