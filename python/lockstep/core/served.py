"""Asking the agent whether the fleet serves a version (trainer_agent/run/FORMAT.md, AWAIT_SERVED)."""

import contextlib
import enum
import operator
import os
import socket
import struct
import time
from typing import Any, Iterable, NamedTuple, Union

from lockstep.core import arguments
from lockstep.core.errors import BadDataError, DeadlineError, ProtocolError, UnavailableError, from_code
from lockstep.core.fleet import peers_of
from lockstep.core.messages import MessageFormat, MessageStream, Received
from lockstep.core.peer import PLUGIN_LINE

EVERY = "*"  # among names: every receiver that is connected, at least one
Receivers = Union[int, str, Iterable[str]]  # how many, or which

_QUESTION = struct.Struct("<16sQII")  # run, version, receivers, milliseconds
_LONGEST_QUESTION_SECONDS = 30.0
_OF_ENGINES = 1 << 31  # in `receivers`: so many engines
_SERVED = struct.Struct("<QQQdQQII")
_ANSWER_SECONDS = 5.0  # the agent's, after the time that it was given
_PAUSE_SECONDS = 0.2


class _Type(enum.IntEnum):
    ERROR = 9
    HELLO = 11
    AWAIT_SERVED = 12
    SERVED = 13


_FORMAT = MessageFormat(
    magic=b"LSRK",
    number=3,
    types=_Type,
    fields=struct.Struct("<I"),
    max_body_bytes={_Type.ERROR: 1 << 20, _Type.HELLO: 4096, _Type.SERVED: _SERVED.size},
)


class Served(NamedTuple):
    """What an agent says of a version that is served."""

    version: int
    model_bytes: int
    delta_bytes: int  # 0: no delta led to it, or none is retained
    density: float
    newest_version: int
    oldest_served: int
    receivers: int  # that are connected
    serving: int


def wait_served(
    path: str,
    model: str,
    run: str,
    label: bytes,
    version: int,
    receivers: "Receivers | None",
    engines: "int | None",
    timeout: "float | None",
) -> Served:
    """As ``Publisher.wait_served``; ``version`` 0: the newest with ``label``."""
    count, names = wanted_receivers(receivers, engines)
    lines = "\n".join([model, label.decode(), *names]).encode()
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _LONGEST_QUESTION_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
        seconds = min(left, _LONGEST_QUESTION_SECONDS)
        question = _QUESTION.pack(bytes.fromhex(run), version, count, int(seconds * 1000)) + lines
        try:
            return _ask(path, question, seconds)
        except (DeadlineError, UnavailableError) as error:  # an agent that was restarted is asked again
            if deadline is not None and time.monotonic() >= deadline:
                sentence = f"not within {timeout:g} s: {error}"
                if isinstance(error, DeadlineError):
                    raise DeadlineError(sentence, lacking=error.lacking) from None
                raise UnavailableError(sentence) from None
            if isinstance(error, UnavailableError):
                time.sleep(_PAUSE_SECONDS)


def wanted_receivers(receivers: Any, engines: Any) -> "tuple[int, list[str]]":
    """The question's count, 0 where there are names, and these."""
    if receivers is not None and engines is not None:
        raise BadDataError("wait_served: give receivers or engines, one of them")
    if engines is not None:
        count = operator.index(engines)
        if not 0 < count < _OF_ENGINES:
            raise BadDataError(f"engines is {count}; give how many must serve it")
        return count | _OF_ENGINES, []
    if hasattr(receivers, "__index__"):
        count = operator.index(receivers)
        if not 0 < count < _OF_ENGINES:
            raise BadDataError(f"receivers is {count}; give how many must serve it, or their names")
        return count, []
    if receivers is None:
        receivers = EVERY
    names = [receivers] if isinstance(receivers, str) else list(receivers)
    for name in names:
        arguments.text("receivers", name, "how many must serve it, or their names")
        if not name or "\n" in name:
            raise BadDataError(f"receivers has {name!r}, which is no receiver's name")
    if not names:
        raise BadDataError("receivers is empty; give how many must serve it, or their names")
    return 0, names


def _ask(path: str, question: bytes, seconds: float) -> Served:
    deadline = time.monotonic() + seconds + _ANSWER_SECONDS
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        stream = MessageStream(connection, _FORMAT, f"the agent on {path}")
        connection.settimeout(_ANSWER_SECONDS)
        try:
            connection.connect(path)
        except OSError as error:
            raise UnavailableError(f"no agent answers on {path}: {error}") from error
        if os.geteuid() != 0:  # a root process has opened the model there, which checks the user
            stream.check_user(path)
        stream.send(_FORMAT.encode(_Type.HELLO, (0,), PLUGIN_LINE.encode()), deadline=deadline)
        _answer(stream, deadline, _Type.HELLO)
        stream.send(_FORMAT.encode(_Type.AWAIT_SERVED, (0,), question), deadline=deadline)
        served = _answer(stream, deadline, _Type.SERVED)
        if len(served.body) != _SERVED.size:
            raise ProtocolError(f"the agent answers with {len(served.body)} bytes where {_SERVED.size} are due")
        return Served(*_SERVED.unpack(served.body))


def _answer(stream: MessageStream, deadline: float, wanted: _Type) -> Received:
    """The next message. Raises what the agent refuses with."""
    message = stream.receive((wanted, _Type.ERROR), deadline=deadline)
    if message.type != _Type.ERROR:
        return message
    if len(message.body) < 4:
        raise ProtocolError("the agent sent an error without a code")
    sentence, _, lacking = message.body[4:].decode(errors="replace").partition("\0")
    error = from_code(int.from_bytes(message.body[:4], "little"), sentence)
    if isinstance(error, DeadlineError):
        with contextlib.suppress(ValueError, IndexError):  # the sentence says the same
            error.lacking = peers_of(lacking)
    raise error
