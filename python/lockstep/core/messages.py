"""Messages over a unix socket: a header, a body, and descriptors that travel with the header.

What the protocol of engine ranks (raas_receiver/engine/ranks/FORMAT.md) and that of bucket rings (python/FORMAT.md) have in
common. A header begins with magic, format number, type and length of the body; the rest of it is the format's own.
"""

import contextlib
import enum
import os
import select
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, NamedTuple, Sequence, Tuple, Type

from lockstep.core.errors import DeadlineError, PermissionDeniedError, ProtocolError, UnavailableError

_COMMON = struct.Struct("<4sHHI")
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class MessageFormat:
    """A protocol's messages.

    ``fields``: of the header, behind its common part. ``max_body_bytes``: of each type that is received with a body.
    """

    magic: bytes
    number: int
    types: "Type[enum.IntEnum]"
    fields: struct.Struct
    max_body_bytes: "Mapping[enum.IntEnum, int]"

    @property
    def header_bytes(self) -> int:
        return _COMMON.size + self.fields.size

    def encode(self, kind: enum.IntEnum, fields: "Sequence[Any]", body: bytes) -> bytes:
        """A message's bytes."""
        return _COMMON.pack(self.magic, self.number, kind, len(body)) + self.fields.pack(*fields) + body

    def decode(self, header: bytes) -> "Tuple[enum.IntEnum, int, Tuple[Any, ...]]":
        """A header's type, its body's length and its fields. ValueError: it is none of this format."""
        magic, number, kind, body_bytes = _COMMON.unpack_from(header)
        if magic != self.magic or number != self.number:
            raise ValueError
        return self.types(kind), body_bytes, self.fields.unpack_from(header, _COMMON.size)


class Received(NamedTuple):
    """A message as it came. ``fds`` belong to its holder."""

    type: Any
    fields: "Tuple[Any, ...]"
    body: bytes
    fds: "Sequence[int]"


class MessageStream:
    """The messages of one connection. Errors call its other end ``peer``. Takes ``connection`` over.

    One thread; ``shutdown`` may be called by any. A deadline is a time of ``time.monotonic``; None waits for ever.

    Raises, from every method:
        UnavailableError: the peer is gone.
        DeadlineError: it let the deadline pass.
        ProtocolError: it sent what is no message of this format, or not the one that comes next.
    """

    def __init__(self, connection: socket.socket, message_format: MessageFormat, peer: str) -> None:
        self._socket = connection
        self._format = message_format
        self._peer = peer

    def check_user(self) -> None:
        """PermissionDeniedError: the peer's user is neither this one nor root."""
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", credentials)
        if uid not in (0, os.geteuid()):
            raise PermissionDeniedError(f"{self._peer} is user {uid}'s; it must run as this user, or as root")

    def send(self, data: bytes, fds: "Sequence[int]" = (), deadline: "float | None" = None) -> None:
        """Sends an encoded message."""
        view = memoryview(data)
        with self._waiting(deadline):
            sent = socket.send_fds(self._socket, [view], list(fds)) if fds else 0
            if sent < len(view):
                self._socket.sendall(view[sent:])

    def receive(self, wanted: "Sequence[enum.IntEnum]", max_fds: int = 0, deadline: "float | None" = None) -> Received:
        """Waits for the next message, which must be of one of the ``wanted`` types."""
        header_bytes = self._format.header_bytes
        with self._waiting(deadline):
            data, fds, _, _ = socket.recv_fds(self._socket, header_bytes, max_fds, socket.MSG_CMSG_CLOEXEC)
        try:
            header = data + self._read(header_bytes - len(data), deadline)
            kind, body_bytes, fields = self._checked(header, wanted)
            return Received(kind, fields, self._read(body_bytes, deadline), fds)
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise

    def is_readable(self, seconds: "float | None") -> bool:
        """Waits until something was received, of a message or of the connection's end. False: not in that time."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1000))

    def shutdown(self, how: int = socket.SHUT_RDWR) -> None:
        """Ends one direction or both; a thread that waits for the peer stops waiting."""
        with contextlib.suppress(OSError):  # the peer was faster
            self._socket.shutdown(how)

    def close(self) -> None:
        """Closes this process' end; the connection lasts while another process has it."""
        self._socket.close()

    def _checked(self, header: bytes, wanted: "Sequence[enum.IntEnum]") -> "Tuple[enum.IntEnum, int, Tuple[Any, ...]]":
        try:
            kind, body_bytes, fields = self._format.decode(header)
        except ValueError:
            raise ProtocolError(
                f"{self._peer} sent {header.hex()}, which is no message of format {self._format.number}; "
                "both ends must be of one release"
            ) from None
        if kind not in wanted:
            raise ProtocolError(f"{self._peer} sent {kind.name}, not {wanted[0].name}")
        if body_bytes > self._format.max_body_bytes.get(kind, 0):
            raise ProtocolError(f"{self._peer} sent {kind.name} with {body_bytes} bytes")
        return kind, body_bytes, fields

    def _read(self, count: int, deadline: "float | None") -> bytes:
        parts = bytearray()
        while len(parts) < count:
            with self._waiting(deadline):
                part = self._socket.recv(min(count - len(parts), _READ_BYTES))
            if not part:
                raise UnavailableError(f"{self._peer} has closed the connection")
            parts += part
        return bytes(parts)

    @contextlib.contextmanager
    def _waiting(self, deadline: "float | None") -> "Iterator[None]":
        try:
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise socket.timeout
                self._socket.settimeout(left)
            yield
        except socket.timeout:
            raise DeadlineError(f"{self._peer} did not answer in time") from None
        except OSError as error:
            raise UnavailableError(f"{self._peer} is gone: {error}") from error
