"""The bucket ring's messages (python/FORMAT.md), for both of its ends."""

import builtins
import contextlib
import enum
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Sequence

from lockstep.core.arguments import MAX_LABEL_BYTES
from lockstep.core.errors import AbortedError, DeadlineError, PermissionDeniedError, ProtocolError, UnavailableError
from lockstep.core.messages import MessageFormat, MessageStream

MAX_BUCKETS = 8
MAX_VERSION = (1 << 56) - 1
# A bucket keeps the data section's alignment: byte n of the section lies at n % ALIGN of it, or behind that.
ALIGN = 16
_MAX_REASON_BYTES = 64 << 10


class MessageType(enum.IntEnum):
    OPEN = 1
    READY = 2
    BEGIN = 3
    FULL = 4
    TAKEN = 5
    END = 6
    WHOLE = 7
    FAILED = 8


RING_FORMAT = MessageFormat(
    magic=b"LSRG",
    number=1,
    types=MessageType,
    fields=struct.Struct("<IQQQ"),
    max_body_bytes={
        MessageType.OPEN: 256 << 20,
        MessageType.BEGIN: MAX_LABEL_BYTES,
        MessageType.FAILED: _MAX_REASON_BYTES,
    },
)


@dataclass
class Message:
    """One message. ``fds`` belong to its holder."""

    type: MessageType
    version: int = 0
    bucket: int = 0
    offset: int = 0
    bytes: int = 0
    body: "builtins.bytes" = b""
    fds: Sequence[int] = field(default_factory=tuple)

    def encode(self) -> "builtins.bytes":
        return RING_FORMAT.encode(self.type, (self.bucket, self.offset, self.bytes, self.version), self.body)


class Peer:
    """The other end of a connection, called ``who`` in errors. Takes ``connection`` over. One thread.

    Raises, from every method:
        UnavailableError: it is gone.
        DeadlineError: it let the deadline pass.
        PermissionDeniedError: it is neither this user's nor root's.
        ProtocolError: it sent what is no message of this format, or not the one that comes next.
        AbortedError: it failed; the text has its reason.
    """

    def __init__(self, connection: socket.socket, who: str) -> None:
        self._stream = MessageStream(connection, RING_FORMAT, who)
        self._who = who
        try:
            self._stream.check_user()
        except PermissionDeniedError:
            self._stream.close()
            raise

    def send(self, message: Message, deadline: float) -> None:
        try:
            self._stream.send(message.encode(), message.fds, deadline)
        except UnavailableError:
            self._raise_its_reason(deadline)
            raise

    def wait(self, deadline: "float | None") -> None:
        """Until something can be received; a message need not be there as a whole."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not self._stream.is_readable(left):
            raise DeadlineError(f"{self._who} sent nothing in time")

    def has_sent_something(self) -> bool:
        """Or is gone."""
        return self._stream.is_readable(0)

    def receive(self, wanted: "Sequence[MessageType]", deadline: float) -> Message:
        """The next message, of one of the ``wanted`` types. Descriptors are taken with OPEN only."""
        max_fds = MAX_BUCKETS if MessageType.OPEN in wanted else 0
        kind, fields, body, fds = self._stream.receive((*wanted, MessageType.FAILED), max_fds, deadline)
        bucket, offset, size, version = fields
        if kind == MessageType.FAILED:
            raise AbortedError(f"{self._who} failed: {body.decode(errors='replace')}")
        return Message(kind, version, bucket, offset, size, body, fds)

    def fail(self, reason: str) -> None:
        """Sends the peer, if it still listens, the reason, and ends the connection."""
        with contextlib.suppress(Exception):
            body = reason.encode(errors="replace")[:_MAX_REASON_BYTES]
            self.send(Message(MessageType.FAILED, body=body), time.monotonic() + 1)
        self.close()

    def close(self) -> None:
        self._stream.shutdown()
        self._stream.close()

    def drop(self) -> None:
        """Closes this process's end; others that have it go on."""
        self._stream.close()

    def _raise_its_reason(self, deadline: float) -> None:
        """AbortedError, if that is the last that the peer sent before it went."""
        with contextlib.suppress(UnavailableError, DeadlineError, ProtocolError):
            while True:
                self.receive([kind for kind in MessageType if kind != MessageType.OPEN], deadline)
