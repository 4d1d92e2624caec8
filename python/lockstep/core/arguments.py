"""What users give as arguments, checked before anything is done with it: BadDataError says what was given and what is
wanted."""

import fnmatch
import math
import operator
import os
import re
from typing import Any, Callable, Iterable, Mapping, Sequence

from lockstep.core import places
from lockstep.core.errors import BadDataError

MODEL_NAME = "the model's name, 1 to 128 letters, digits, '.', '_' and '-'"
MAX_LABEL_BYTES = 64
_NO_LIMIT_MS = (1 << 32) - 1  # seven weeks
RUN_ID = "None for a new run, or 32 hex digits, as .run has them"


def version_number(version: Any) -> int:
    """``version`` as an int; any kind of whole number may be given."""
    try:
        number = operator.index(version)
    except TypeError:
        raise _unwanted("version", version, "a whole number from 1 to 2**56 - 1") from None
    if not 0 < number < 1 << 56:
        raise BadDataError(f"version {number}: versions go from 1 to 2**56 - 1")
    return number


def label(value: "str | int | None") -> bytes:
    """What a version is called beside its number, as the library takes it; a number becomes its digits."""
    wanted = "text of at most 64 bytes without control characters, or a whole number such as the step"
    if value is None:
        return b""
    try:
        given = value if isinstance(value, str) else str(operator.index(value))
    except TypeError:
        raise _unwanted("label", value, wanted) from None
    encoded = text("label", given, wanted)
    if len(encoded) > MAX_LABEL_BYTES or any(ord(character) < 0x20 or character == "\x7f" for character in given):
        raise BadDataError(f"label is {value!r}; give {wanted}")
    return encoded


def export_socket(given: "str | os.PathLike[str] | None") -> "str | os.PathLike[str]":
    """Where this host's agent takes versions; None: $LOCKSTEP_EXPORT_SOCKET, then its usual place."""
    return given or os.environ.get("LOCKSTEP_EXPORT_SOCKET") or places.socket("agent", "export.sock")


def engine_socket(given: "str | os.PathLike[str] | None") -> str:
    """Where this host's receiver takes engines' ranks; None: $LOCKSTEP_ENGINE_SOCKET, then its usual place."""
    return os.fspath(given or os.environ.get("LOCKSTEP_ENGINE_SOCKET") or places.socket("receiver", "engine.sock"))


def replica_root(given: "str | os.PathLike[str] | None") -> str:
    """Where this host's receiver has its replicas; None: $LOCKSTEP_ROOT, then its usual place."""
    return os.fspath(given or os.environ.get("LOCKSTEP_ROOT") or places.replicas())


def wait_milliseconds(timeout: "float | None") -> int:
    """Of a wait: None is no limit, and 0 or less a look."""
    return milliseconds("timeout", timeout) if timeout is None or timeout > 0 else 0


def milliseconds(what: str, seconds: "float | None") -> int:
    """A time limit in seconds as the library takes it; None: no limit."""
    if seconds is None:
        return _NO_LIMIT_MS
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise _unwanted(what, seconds, "seconds, or None for no limit")
    return max(1, min(_NO_LIMIT_MS, math.ceil(seconds * 1000)))


def count(what: str, value: Any, least: int = 0) -> int:
    """A whole number that fits the library's, ``least`` or more."""
    wanted = f"a whole number from {least} on"
    try:
        number = operator.index(value)
    except TypeError:
        raise _unwanted(what, value, wanted) from None
    if not least <= number < 1 << 32:
        raise BadDataError(f"{what} is {number}; give {wanted}")
    return number


def text(what: str, value: Any, wanted: str) -> bytes:
    """``value`` as the library takes it."""
    if not isinstance(value, str):
        raise _unwanted(what, value, wanted)
    try:
        return _c_string(what, value, value.encode())
    except UnicodeEncodeError:
        raise _unwanted(what, value, wanted) from None


def patterns(what: str, given: "str | Iterable[str]") -> "list[str]":
    """Patterns of names, as a shell has them; one may be given by itself."""
    some = [given] if isinstance(given, str) else list(given)
    for pattern in some:
        text(what, pattern, 'patterns of names, such as "mtp.*"')
    return some


def matching(what: str, given: "str | Iterable[str]") -> "Callable[[str], bool]":
    """Whether a name is one of such patterns."""
    matcher = re.compile("|".join(map(fnmatch.translate, patterns(what, given))) or r"\Z.")
    return lambda name: matcher.match(name) is not None


def entries(what: str, value: Any, keys: str) -> "dict[str, list[dict[str, Any]]]":
    """For each parameter's name its list of dictionaries with these ``keys``; None: of no parameter."""
    wanted = f"a dictionary from each parameter's name to a list of {{{keys}}}"
    if not isinstance(value, (Mapping, type(None))):
        raise _unwanted(what, value, wanted)
    for name, given in (value or {}).items():
        if not isinstance(given, Sequence) or not all(isinstance(entry, Mapping) for entry in given):
            raise _unwanted(f"{what}[{name!r}]", given, wanted)
    return {name: [dict(entry) for entry in given] for name, given in (value or {}).items()}


def path(what: str, value: Any) -> bytes:
    """``value`` as the library takes it."""
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise _unwanted(what, value, "a path")
    return _c_string(what, value, os.fsencode(value))


def _c_string(what: str, value: Any, encoded: bytes) -> bytes:
    if b"\0" in encoded:
        raise BadDataError(f"{what} is {value!r}, with a NUL character in it")
    return encoded


def _unwanted(what: str, value: Any, wanted: str) -> BadDataError:
    return BadDataError(f"{what} is {value!r}, of type {type(value).__name__}; give {wanted}")
