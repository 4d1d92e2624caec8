"""The rank protocol (raas_receiver/targets/FORMAT.md), a rank's side."""

import enum
import socket
import struct
from dataclasses import dataclass, field
from typing import Any, Sequence

from lockstep.core.errors import UnavailableError
from lockstep.core.messages import MessageFormat, MessageStream
from lockstep.engine._served import Served

_MAX_FDS = 8


class MessageType(enum.IntEnum):
    ATTACH = 1
    ATTACHED = 2
    REFUSED = 3
    PAUSE = 4
    PAUSED = 5
    SERVE = 6
    SERVING = 7
    STAGE = 8
    STAGED = 9
    WRITE = 10
    WRITTEN = 11
    COMPARE = 12
    COMPARED = 13
    DROP = 14


_FORMAT = MessageFormat(
    magic=b"LSER",
    number=3,
    types=MessageType,
    fields=struct.Struct("<4x16sQ"),
    max_body_bytes={kind: 64 << 10 for kind in MessageType},
)


@dataclass
class Message:
    """One message. ``fds`` belong to its holder."""

    type: MessageType
    version: "Served | None" = None
    body: bytes = b""
    fds: Sequence[int] = field(default_factory=tuple)

    def encode(self) -> bytes:
        run, number = bytes(16), 0
        if self.version is not None:
            run, number = bytes.fromhex(self.version.run), self.version.version
        return _FORMAT.encode(self.type, (run, number), self.body)


class Connection:
    """A connection to a receiver's engine socket, once ``connect`` was called. One thread; ``shutdown`` may be called
    by any.

    Raises:
        UnavailableError: no process listens, or the receiver is gone.
        PermissionDeniedError: the listener is neither this user nor root, and would decide what this process' memory holds.
        ProtocolError: what came is no message of this format.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._stream = MessageStream(self._socket, _FORMAT, f"the receiver on {path}")

    def connect(self) -> None:
        """At once or not at all: a receiver that is stopped, with its backlog full, is one that does not answer."""
        try:
            # Waiting for room in a backlog is the one wait that no shutdown() ends.
            self._socket.setblocking(False)
            self._socket.connect(self._path)
            self._socket.setblocking(True)
        except OSError as error:
            raise UnavailableError(f"no receiver answers on {self._path}: {error}") from error
        self._stream.check_user()

    def send(self, message: Message) -> None:
        """That the receiver is gone is seen by the next ``receive``, after what it has sent before: why it refuses."""
        try:
            self._stream.send(message.encode(), message.fds)
        except UnavailableError:
            self._stream.shutdown(socket.SHUT_WR)  # what follows a message that was cut off would be misunderstood

    def receive(self) -> Message:
        """Waits for the next message."""
        kind, (run, number), body, fds = self._stream.receive(tuple(MessageType), _MAX_FDS)
        return Message(kind, Served(run.hex(), number) if number else None, body, fds)

    def has_more(self) -> bool:
        """Whether there is something to ``receive``, if only the connection's end."""
        return self._stream.is_readable(0)

    def shutdown(self) -> None:
        """Ends both directions; another thread that waits in ``receive`` gets UnavailableError."""
        self._stream.shutdown()

    def close(self) -> None:
        """This process' end; the connection lasts while another process has it."""
        self._stream.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
