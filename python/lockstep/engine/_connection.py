"""The rank protocol (raas_receiver/engine/ranks/FORMAT.md), a rank's side."""

import enum
import json
import re
import socket
import struct
from dataclasses import dataclass, field
from typing import Any, Sequence, Tuple

from lockstep.core.dtypes import element_bits
from lockstep.core.errors import ProtocolError, StateError, UnavailableError
from lockstep.core.messages import MessageFormat, MessageStream
from lockstep.core.peer import LINE
from lockstep.engine._dtypes import torch_dtype
from lockstep.engine._recorder import TensorForm
from lockstep.engine._served import Served

_MAX_FDS = 8
_MAX_RANK, _MAX_EXTENT = 16, 1 << 44  # of a tensor


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
    ASK = 15
    LAYOUT = 16
    AGREE = 17
    AGREED = 18


_FORMAT = MessageFormat(
    magic=b"LSER",
    number=5,
    types=MessageType,
    fields=struct.Struct("<4x16sQ"),
    max_body_bytes={**{kind: 64 << 10 for kind in MessageType}, MessageType.LAYOUT: 256 << 20},
)


class RefusedError(StateError):
    """The receiver refuses this rank."""


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
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._stream = MessageStream(self._socket, _FORMAT, f"the receiver on {path}")

    def connect(self) -> None:
        """At once or not at all: a receiver that is stopped, with its backlog full, is one that does not answer."""
        try:
            # Waiting for room in a backlog is the one wait that no shutdown() ends.
            self._socket.setblocking(False)
            self._socket.connect(self.path)
            self._socket.setblocking(True)
        except OSError as error:
            raise UnavailableError(f"no receiver answers on {self.path}: {error}") from error
        self._stream.check_user()

    def send(self, message: Message) -> None:
        """That the receiver is gone is seen by the next ``receive``, after what it has sent before: why it refuses."""
        try:
            self._stream.send(message.encode(), message.fds)
        except UnavailableError:
            self._stream.shutdown(socket.SHUT_WR)  # what follows a message that was cut off would be misunderstood

    def receive(self, wanted: "Sequence[MessageType]" = tuple(MessageType), max_fds: int = _MAX_FDS) -> Message:
        """Waits for the next message."""
        kind, (run, number), body, fds = self._stream.receive(wanted, max_fds)
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


def ask_layout(connection: Connection, model: str) -> "Tuple[str, list[TensorForm]]":
    """Waits until the receiver knows the layout of ``model``: its digest, and its tensors in the order of the checkpoint. Nothing
    comes on the connection after that.

    Raises:
        RefusedError: the receiver does not follow the model.
        BadDataError: PyTorch has not the dtype of a tensor, which the text names.
    """
    connection.send(Message(MessageType.ASK, body=json.dumps({"peer": LINE, "model": model}).encode()))
    answer = connection.receive((MessageType.LAYOUT, MessageType.REFUSED), max_fds=0)
    if answer.type == MessageType.REFUSED:
        raise RefusedError(f"{connection.path} does not take this rank: {answer.body.decode(errors='replace')}")
    try:
        digest, tensors = _parsed(answer.body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the receiver on {connection.path} sent LAYOUT, in which {error}") from error
    return digest, [_form_of(*tensor) for tensor in tensors]


def _form_of(name: str, dtype: str, shape: "list[int]") -> TensorForm:
    found, packed = torch_dtype(name, dtype)
    if shape and packed > 1:
        shape = [*shape[:-1], shape[-1] // packed]
    return TensorForm(name, found, tuple(shape))


def _parsed(body: bytes) -> "Tuple[str, list[Tuple[str, str, list[int]]]]":
    """ValueError says what of LAYOUT's ``body`` is wrong."""
    layout = json.loads(body, object_pairs_hook=_members)
    if not isinstance(layout, dict) or set(layout) != {"digest", "tensors"}:
        raise ValueError('there is no object of "digest" and "tensors"')
    digest, tensors = layout["digest"], layout["tensors"]
    if not (isinstance(digest, str) and re.fullmatch("[0-9a-f]{32}", digest)):
        raise ValueError('"digest" is not 32 hexadecimal digits')
    if not isinstance(tensors, dict):
        raise ValueError('"tensors" is not an object')
    for name, form in tensors.items():
        if not (isinstance(form, list) and len(form) == 2 and _is_dtype(form[0]) and _is_shape(form[1])):
            raise ValueError(f"tensor {name!r} does not have a dtype of safetensors and a shape")
    return digest, [(name, *form) for name, form in tensors.items()]


def _is_dtype(dtype: Any) -> bool:
    return isinstance(dtype, str) and element_bits(dtype) != 0


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, list)
        and len(shape) <= _MAX_RANK
        and all(type(extent) is int and 0 <= extent <= _MAX_EXTENT for extent in shape)
    )


def _members(pairs: "list[Tuple[str, Any]]") -> "dict[str, Any]":
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("an object has one key twice")
    return members
