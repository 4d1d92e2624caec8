"""The rank protocol and the control page (raas_receiver/targets/FORMAT.md), a rank's side."""

import contextlib
import enum
import mmap
import os
import socket
import struct
from dataclasses import dataclass, field
from typing import Any, Sequence, Tuple

from lockstep._errors import PermissionDeniedError, ProtocolError, UnavailableError

_HEADER = struct.Struct("<4sHHII16sQ")
_MAGIC = b"LSER"
FORMAT = 1
_MAX_BODY_BYTES = 64 << 10  # of what a rank receives
_MAX_FDS = 8

_PAGE = struct.Struct("<8sHHI")
_PAGE_MAGIC = b"LSENGPG1"
_PAGE_BYTES = 4096
_PAGE_HEADER_BYTES = 128
_WORD_INDEX = 2  # in units of eight bytes
_SLOT = struct.Struct("<16sQI4x")
_SLOTS_OFFSET = 32


@dataclass(frozen=True)
class Served:
    """A version as a rank has it: run (32 hex digits) and number."""

    run: str
    version: int


class MessageType(enum.IntEnum):
    ATTACH = 1
    ATTACHED = 2
    REFUSED = 3
    HOLD = 4
    HELD = 5
    SERVE = 6
    SERVING = 7


@dataclass
class Message:
    """One message. ``fds`` belong to whoever has it."""

    type: MessageType
    version: "Served | None" = None
    half: int = 0
    body: bytes = b""
    fds: Sequence[int] = field(default_factory=tuple)

    def encode(self) -> bytes:
        run, number = bytes(16), 0
        if self.version is not None:
            run, number = bytes.fromhex(self.version.run), self.version.version
        return _HEADER.pack(_MAGIC, FORMAT, self.type, len(self.body), self.half, run, number) + self.body


class Connection:
    """A connection to a receiver's engine socket, once ``connect`` was called. One thread; ``shutdown`` may be called
    by any.

    Raises:
        UnavailableError: nobody listens, or the receiver is gone.
        PermissionDeniedError: whoever listens is neither this user nor root, and would get this process' memory.
        ProtocolError: what came is no message of this format.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def connect(self) -> None:
        """At once or not at all: a receiver that is stopped, with its backlog full, is one that does not answer."""
        try:
            # Waiting for room in a backlog is the one wait that no shutdown() ends.
            self._socket.setblocking(False)
            self._socket.connect(self._path)
            self._socket.setblocking(True)
            _, uid, _ = struct.unpack("3i", self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        except OSError as error:
            raise UnavailableError(f"no receiver answers on {self._path}: {error}") from error
        if uid not in (0, os.geteuid()):
            raise PermissionDeniedError(f"{self._path} is user {uid}'s; a receiver must run as this user or as root")

    def send(self, message: Message) -> None:
        """A receiver that is gone is told by the next ``receive``, after what it has said before: why it refuses."""
        data = memoryview(message.encode())
        try:
            sent = socket.send_fds(self._socket, [data], list(message.fds)) if message.fds else 0
            if sent < len(data):
                self._socket.sendall(data[sent:])
        except OSError:
            self.shutdown_sending()

    def receive(self) -> Message:
        """Waits for the next message."""
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, _HEADER.size, _MAX_FDS, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise UnavailableError(f"the receiver on {self._path} is gone: {error}") from error
        try:
            header = data + self._read(_HEADER.size - len(data)) if data else self._read(_HEADER.size)
            magic, version, kind, body_bytes, half, run, number = _HEADER.unpack(header)
            if magic != _MAGIC or version != FORMAT or body_bytes > _MAX_BODY_BYTES or kind not in set(MessageType):
                raise ProtocolError(
                    f"{self._path} sent {header.hex()}, which is no message of format {FORMAT}; "
                    "receiver and package must be of one release"
                )
            held = Served(run.hex(), number) if number else None
            return Message(MessageType(kind), held, half, self._read(body_bytes), fds)
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise

    def shutdown_sending(self) -> None:
        """What follows a message that was cut off would be misunderstood."""
        with contextlib.suppress(OSError):  # it is gone already
            self._socket.shutdown(socket.SHUT_WR)

    def shutdown(self) -> None:
        """Ends both directions; whoever waits in another thread is told."""
        with contextlib.suppress(OSError):  # the peer was faster
            self._socket.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """This process' end; the connection lasts while another process has it."""
        self._socket.close()

    def _read(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self._socket.recv(count - len(parts))
            except OSError as error:
                raise UnavailableError(f"the receiver on {self._path} is gone: {error}") from error
            if not part:
                raise UnavailableError(f"the receiver on {self._path} has closed the connection")
            parts += part
        return bytes(parts)


class EngineState(enum.IntEnum):
    EMPTY = 0
    SERVING = 1
    WRITING = 2


@dataclass(frozen=True)
class PageContent:
    """One reading of a control page: ``changes`` counts the word's changes; version and half are the named slot's."""

    state: int
    changes: int
    version: "Served | None"
    half: int


class ControlPage:
    """What all ranks of a group serve, as the receiver says it. Takes ``fd`` over. ProtocolError: it is none."""

    def __init__(self, fd: int, world: int) -> None:
        try:
            if os.fstat(fd).st_size != _PAGE_BYTES:
                raise ProtocolError(f"the control page has {os.fstat(fd).st_size} bytes, not {_PAGE_BYTES}")
            self._map = mmap.mmap(fd, _PAGE_BYTES, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)
        if _PAGE.unpack_from(self._map) != (_PAGE_MAGIC, FORMAT, _PAGE_HEADER_BYTES, world):
            raise ProtocolError(f"the control page is none of format {FORMAT} for {world} ranks")
        # An item is read by one aligned load of eight bytes.
        self._words = memoryview(self._map).cast("Q")

    def read(self) -> PageContent:
        """The word and its slot. The receiver fills the other slot, so while the word stays this one is whole."""
        while True:
            word = self._words[_WORD_INDEX]
            run, number, half = self._slot(word >> 8 & 1)
            if self._words[_WORD_INDEX] == word:
                version = Served(run.hex(), number) if number else None
                return PageContent(word & 0xFF, word >> 16, version, half)

    def _slot(self, index: int) -> "Tuple[bytes, int, int]":
        return _SLOT.unpack_from(self._map, _SLOTS_OFFSET + index * _SLOT.size)
