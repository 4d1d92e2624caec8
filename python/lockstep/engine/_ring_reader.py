"""RingReader: takes versions out of a trainer's bucket ring, on the same GPU or the same host."""

import os
import socket
import time
from typing import Any, Protocol, Sequence, Union

from lockstep.core.errors import AbortedError, DeadlineError, Error, ProtocolError, StateError, UnavailableError
from lockstep.core.forked import FORKED, close_after_fork
from lockstep.core.ring_messages import MAX_VERSION, Message, MessageType, Peer
from lockstep.core.tensors import TensorMeta
from lockstep.engine._ring_memory import Ring, TensorSlice
from lockstep.engine._served import Served

_PAUSE_SECONDS = 0.02


class Into(Protocol):
    """Where a reader puts what it takes: ``IntoModule``, ``IntoLoader``, or anything with these."""

    def open(self, tensors: "Sequence[TensorMeta]") -> None:
        """Before the first version of a connection: what the trainer has. Raising refuses the trainer."""

    def take(self, pieces: "Sequence[TensorSlice]") -> None:
        """What is in one bucket; its values are gone afterwards. Every element of the model comes once in a version."""

    def end(self) -> None:
        """The version's last piece was taken."""


class RingReader:
    """The engine's end of a ``lockstep.BucketRing``. One thread; nothing happens but in ``take``.

        reader = lockstep.RingReader("/run/trainer/ring.sock", lockstep.IntoModule(model))
        while True:
            served = reader.take()   # the weights are those of served.version
            answer_requests(model)

    Args:
        socket: the ring's.
        into: where the tensors go.
        timeout: seconds that the trainer may be silent within a version.
    """

    def __init__(self, socket: "Union[str, os.PathLike[str]]", into: Into, *, timeout: float = 60.0) -> None:
        self._path = os.fspath(socket)
        self._into = into
        self._timeout = timeout
        self._peer: "Peer | None" = None
        self._ring: "Ring | None" = None  # once the trainer has sent what it has
        self._served: "Served | None" = None
        self._error: "str | None" = None
        self._closed: "str | None" = None
        close_after_fork(self)

    @property
    def served(self) -> "Served | None":
        """The version that was taken last. None before the first one, and after one that broke off: the weights are a
        mix then and may not be used, until a whole version came."""
        return self._served

    @property
    def error(self) -> "str | None":
        """Why the last version broke off, until a whole one came."""
        return self._error

    def take(self, timeout: "float | None" = None) -> Served:
        """Waits for the next version and takes all of it.

        Args:
            timeout: seconds to wait for it to begin; None waits for ever, 0 does not wait. The trainer need not be
                there yet, and may have been started again since the last time.

        Raises:
            DeadlineError: no version began in time; ``served`` stays as it is.
            BadDataError: the tensors do not fit ``into``, also for the trainer. ``served`` stays as it is.
            PermissionDeniedError: the ring is another user's.
            UnavailableError, DeadlineError, AbortedError, ProtocolError: the trainer went away, was silent for longer
                than the reader's timeout, failed, or broke the protocol. ``served`` is None where that left a mix.
            Exception: whatever ``into`` raised; the trainer gets its text.
        """
        if self._closed:
            raise StateError(f"the reader {self._closed}")
        begun = self._next_version(None if timeout is None else time.monotonic() + timeout)
        assert self._peer is not None and self._ring is not None
        try:
            self._take_all(self._peer, self._ring, begun.version)
        except BaseException as error:
            reason = str(error) or repr(error)
            if self._served is None:
                self._error = f"version {begun.version} broke off, the weights are a mix: {reason}"
            self._leave(reason)
            raise
        return self._finish(self._peer, begun)

    def close(self) -> None:
        """Leaves the ring. The weights stay as they are."""
        self._closed = self._closed or "is closed"
        self._leave("the reader was closed")

    def __enter__(self) -> "RingReader":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _close_after_fork(self) -> None:
        self._closed = FORKED
        if self._peer is not None:
            self._peer.drop()
        self._peer = self._ring = None

    def _next_version(self, deadline: "float | None") -> Served:
        """Waits for BEGIN, on a new connection where the last one has ended."""
        while True:
            peer = self._connected(deadline)
            peer.wait(deadline)
            try:
                if self._ring is not None:
                    return self._begin(peer, self._ring)
                self._open(peer)
            except (AbortedError, UnavailableError):  # the trainer left between two versions
                self._leave("")
                _sleep(deadline)
            except BaseException as error:
                self._leave(str(error) or repr(error))
                raise

    def _connected(self, deadline: "float | None") -> Peer:
        while self._peer is None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(self._path)
            except OSError as error:
                connection.close()
                if deadline is not None and time.monotonic() >= deadline:
                    raise DeadlineError(f"no trainer's ring was at {self._path} in time: {error}") from error
                _sleep(deadline)
            else:
                self._peer = Peer(connection, f"the trainer on {self._path}")
        return self._peer

    def _open(self, peer: Peer) -> None:
        message = peer.receive([MessageType.OPEN], self._deadline())
        try:
            ring = Ring(message.body, message.fds)
        finally:
            for fd in message.fds:
                os.close(fd)
        self._into.open(ring.tensors)
        peer.send(Message(MessageType.READY), self._deadline())
        self._ring = ring

    def _begin(self, peer: Peer, ring: Ring) -> Served:
        message = peer.receive([MessageType.BEGIN], self._deadline())
        if not 0 < message.version <= MAX_VERSION:
            raise ProtocolError(f"{self._path}: version {message.version} is none")
        return Served(ring.run, message.version, message.body.decode(errors="replace"))

    def _take_all(self, peer: Peer, ring: Ring, version: int) -> None:
        at, number = 0, 0
        while at < ring.bytes:
            full = peer.receive([MessageType.FULL], self._deadline())
            index = number % len(ring.buckets)
            if (full.version, full.bucket, full.offset) != (version, index, at):
                raise ProtocolError(
                    f"{self._path}: FULL is of bytes from {full.offset} on of version {full.version} in bucket "
                    f"{full.bucket}; due are those from {at} on of version {version} in bucket {index}"
                )
            pieces = ring.pieces(index, at, full.bytes)
            self._served = None  # from here on the weights are a mix
            self._into.take(pieces)
            ring.synchronize()
            peer.send(Message(MessageType.TAKEN, version, index), self._deadline())
            at, number = at + full.bytes, number + 1
        if peer.receive([MessageType.END], self._deadline()).version != version:
            raise ProtocolError(f"{self._path}: the end of another version than {version}")
        self._into.end()
        ring.synchronize()

    def _finish(self, peer: Peer, served: Served) -> Served:
        self._served, self._error = served, None
        try:
            peer.send(Message(MessageType.WHOLE, served.version), self._deadline())
        except Error as error:  # the version is whole all the same
            self._leave(str(error))
        return served

    def _leave(self, reason: str) -> None:
        peer, self._peer, self._ring = self._peer, None, None
        if peer is not None:
            peer.fail(reason) if reason else peer.close()

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout


def _sleep(deadline: "float | None") -> None:
    left = _PAUSE_SECONDS if deadline is None else deadline - time.monotonic()
    time.sleep(min(_PAUSE_SECONDS, max(left, 0)))
