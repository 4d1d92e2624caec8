"""Waiting until a fleet serves a version: the agent is asked, and decides (``lockstep_wait_served``)."""

import ctypes
import dataclasses
import operator
import os
from typing import Any, Iterable, Tuple, Type, TypeVar, Union

from lockstep.core import abi, arguments
from lockstep.core.answers import decoded, parsed
from lockstep.core.errors import BadDataError, DeadlineError
from lockstep.core.fleet import Peer
from lockstep.core.interruption import Interruption

EVERY = "*"  # among names: every receiver that is connected, at least one
Receivers = Union[int, str, Iterable[str]]  # how many, or which
_Answer = TypeVar("_Answer")


@dataclasses.dataclass(frozen=True)
class Served:
    """What an agent says of a version that was waited for (AwaitServedResponse of proto/lockstep/v1/agent.proto)."""

    version: int = 0
    model_bytes: int = 0
    delta_bytes: int = 0
    density: float = 0.0
    newest_version: int = 0
    oldest_served: int = 0
    receivers: int = 0
    serving: int = 0
    lacking: Tuple[Peer, ...] = ()


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
    count, of_engines, names = wanted_receivers(receivers, engines)
    interruption = Interruption()
    query = abi.CServedQuery(
        abi_version=abi.ABI_VERSION,
        socket_path=os.fsencode(path),
        model=model.encode(),
        run=run.encode(),
        version=version,
        label=label,
        receivers=count,
        engines=of_engines,
        names=(ctypes.c_char_p * len(names))(*(name.encode() for name in names)),
        name_count=len(names),
        timeout_ms=arguments.wait_milliseconds(timeout),
        interrupted=interruption.callback,
    )
    code, answer = asked(abi.load().lockstep_wait_served, query, Served, interruption)
    try:
        abi.raise_failure(code)
    except DeadlineError as error:
        error.lacking = answer.lacking
        raise
    return answer


def asked(
    ask: Any, query: ctypes.Structure, kind: "Type[_Answer]", interruption: Interruption
) -> "Tuple[int, _Answer]":
    """The code of a question of the library, and its answer; an empty one where there is none."""
    text = ctypes.c_void_p()
    code = ask(ctypes.byref(query), ctypes.byref(text))
    try:
        answer = decoded(kind, parsed(ctypes.string_at(text))) if text else kind()
    finally:
        abi.load().lockstep_free(text)
    interruption.raise_pending()
    return code, answer


def wanted_receivers(receivers: Any, engines: Any) -> "Tuple[int, int, list[str]]":
    """How many receivers, how many engines, and which: two of the three are 0 or empty."""
    if receivers is not None and engines is not None:
        raise BadDataError("wait_served: give receivers or engines, one of them")
    if engines is not None:
        return 0, _count("engines", engines, "how many must serve it"), []
    if hasattr(receivers, "__index__"):
        return _count("receivers", receivers, "how many must serve it, or their names"), 0, []
    if receivers is None:
        receivers = EVERY
    names = [receivers] if isinstance(receivers, str) else list(receivers)
    for name in names:
        arguments.text("receivers", name, "how many must serve it, or their names")
        if not name or "\n" in name:
            raise BadDataError(f"receivers has {name!r}, which is no receiver's name")
    if not names:
        raise BadDataError("receivers is empty; give how many must serve it, or their names")
    return 0, 0, names


def _count(what: str, given: Any, wanted: str) -> int:
    count = operator.index(given)
    if not 0 < count < 1 << 32:
        raise BadDataError(f"{what} is {count}; give {wanted}")
    return count
