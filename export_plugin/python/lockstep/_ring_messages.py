"""The bucket ring's messages (export_plugin/python/FORMAT.md), for both of its ends."""

import contextlib
import enum
import os
import select
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Iterator, Sequence, Tuple

from lockstep._errors import AbortedError, DeadlineError, PermissionDeniedError, ProtocolError, UnavailableError

HEADER = struct.Struct("<4sHHIIQQQ")
FORMAT = 1
MAX_BUCKETS = 8
MAX_VERSION = (1 << 56) - 1
# A bucket keeps the data section's alignment: byte n of the section lies at n % ALIGN of it, or behind that.
ALIGN = 16
_MAGIC = b"LSRG"
_READ_BYTES = 1 << 20


class MessageType(enum.IntEnum):
    OPEN = 1
    READY = 2
    BEGIN = 3
    FULL = 4
    TAKEN = 5
    END = 6
    WHOLE = 7
    FAILED = 8


_MAX_REASON_BYTES = 64 << 10
_MAX_BODY_BYTES = {MessageType.OPEN: 256 << 20, MessageType.FAILED: _MAX_REASON_BYTES}


@dataclass
class Message:
    """One message. ``fds`` belong to whoever has it."""

    type: MessageType
    version: int = 0
    bucket: int = 0
    offset: int = 0
    bytes: int = 0
    body: bytes = b""
    fds: Sequence[int] = field(default_factory=tuple)

    def encode(self) -> bytes:
        counts = self.bucket, self.offset, self.bytes, self.version
        return HEADER.pack(_MAGIC, FORMAT, self.type, len(self.body), *counts) + self.body


class Peer:
    """The other end of a connection, called ``who`` in errors. Takes ``connection`` over. One thread.

    Raises, from every method:
        UnavailableError: it is gone.
        DeadlineError: it let the deadline pass.
        PermissionDeniedError: it is neither this user's nor root's.
        ProtocolError: it sent what is no message of this format, or not the one that comes next.
        AbortedError: it gave up; the text has its reason.
    """

    def __init__(self, connection: socket.socket, who: str) -> None:
        self._socket = connection
        self._who = who
        _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid not in (0, os.geteuid()):
            connection.close()
            raise PermissionDeniedError(f"{who} is user {uid}'s; both ends of a ring must run as one user, or as root")

    def send(self, message: Message, deadline: float) -> None:
        data = memoryview(message.encode())
        try:
            with self._waiting(deadline):
                sent = socket.send_fds(self._socket, [data], list(message.fds)) if message.fds else 0
                if sent < len(data):
                    self._socket.sendall(data[sent:])
        except UnavailableError:
            self._raise_its_reason(deadline)
            raise

    def wait(self, deadline: "float | None") -> None:
        """Until something can be received; a message need not be there as a whole."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not self._readable(left):
            raise DeadlineError(f"{self._who} said nothing in time")

    def has_something_to_say(self) -> bool:
        """Or is gone."""
        return self._readable(0)

    def receive(self, wanted: "Sequence[MessageType]", deadline: float) -> Message:
        """The next message, of one of the ``wanted`` types. Descriptors are taken with OPEN only."""
        opens = MessageType.OPEN in wanted
        data, fds = self._first(MAX_BUCKETS if opens else 0, deadline)
        try:
            message, body_bytes = self._parsed(data + self._read(HEADER.size - len(data), deadline))
            if message.type not in (*wanted, MessageType.FAILED):
                raise ProtocolError(f"{self._who} said {message.type.name}, not {wanted[0].name}")
            if body_bytes > _MAX_BODY_BYTES.get(message.type, 0):
                raise ProtocolError(f"{self._who} sent {message.type.name} with {body_bytes} bytes")
            message.body = self._read(body_bytes, deadline)
            if message.type == MessageType.FAILED:
                raise AbortedError(f"{self._who} gave up: {message.body.decode(errors='replace')}")
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        message.fds = fds
        return message

    def give_up(self, reason: str) -> None:
        """Tells the peer, if it still listens, and ends the connection."""
        with contextlib.suppress(Exception):
            body = reason.encode(errors="replace")[:_MAX_REASON_BYTES]
            self.send(Message(MessageType.FAILED, body=body), time.monotonic() + 1)
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it is gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _raise_its_reason(self, deadline: float) -> None:
        """AbortedError, if that is the last that the peer said before it went."""
        with contextlib.suppress(UnavailableError, DeadlineError, ProtocolError):
            while True:
                self.receive([kind for kind in MessageType if kind != MessageType.OPEN], deadline)

    def _readable(self, seconds: "float | None") -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1000))

    def _parsed(self, header: bytes) -> "Tuple[Message, int]":
        magic, version, kind, body_bytes, bucket, offset, size, number = HEADER.unpack(header)
        if magic != _MAGIC or version != FORMAT or kind not in set(MessageType):
            raise ProtocolError(
                f"{self._who} sent {header.hex()}, which is no message of format {FORMAT}; both ends must be of one "
                "release"
            )
        return Message(MessageType(kind), number, bucket, offset, size), body_bytes

    def _first(self, max_fds: int, deadline: float) -> "Tuple[bytes, list[int]]":
        with self._waiting(deadline):
            data, fds, _, _ = socket.recv_fds(self._socket, HEADER.size, max_fds, socket.MSG_CMSG_CLOEXEC)
        if not data:
            raise UnavailableError(f"{self._who} has closed the connection")
        return data, fds

    def _read(self, count: int, deadline: float) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            with self._waiting(deadline):
                part = self._socket.recv(min(count - len(parts), _READ_BYTES))
            if not part:
                raise UnavailableError(f"{self._who} has closed the connection")
            parts += part
        return bytes(parts)

    @contextlib.contextmanager
    def _waiting(self, deadline: float) -> "Iterator[None]":
        left = deadline - time.monotonic()
        try:
            if left <= 0:
                raise socket.timeout
            self._socket.settimeout(left)
            yield
        except socket.timeout:
            raise DeadlineError(f"{self._who} did not answer in time") from None
        except OSError as error:
            raise UnavailableError(f"{self._who} is gone: {error}") from error
