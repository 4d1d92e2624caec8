"""One exception class per error code of the C ABI (export_plugin/lockstep.h). Each is also the built-in exception that
Python has for it."""

from typing import Iterable

from lockstep.core.fleet import Peer


class Error(Exception):
    """What Lockstep raises. ``code`` is one of lockstep.h's numbers; the text has what failed and what to do."""

    code = 0

    def __init__(self, message: str, code: "int | None" = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class BadDataError(Error, ValueError):
    """A tensor, version or description breaks a rule; the text names it."""

    code = 3


class ProtocolError(Error):
    """The agent speaks another version of the protocol, or breaks it."""

    code = 5


class NotFoundError(Error, FileNotFoundError):
    """The run, or the shared library, is not there."""

    code = 6


class StateError(Error):
    """The call does not fit the moment: a version that does not increase, a commit without a begin."""

    code = 7


class UnavailableError(Error, ConnectionError):
    """No agent answers on the socket."""

    code = 8


class DeadlineError(Error, TimeoutError):
    """The agent did not answer in time, or receivers did not serve a version: then ``lacking`` are those."""

    code = 9

    def __init__(self, message: str, code: "int | None" = None, *, lacking: "Iterable[Peer]" = ()) -> None:
        super().__init__(message, code)
        self.lacking = tuple(lacking)


class AbortedError(Error):
    """The version was aborted because of another rank; the next version works."""

    code = 10


class PermissionDeniedError(Error, PermissionError):
    """The agent does not accept this user."""

    code = 12


class ResourceExhaustedError(Error):
    """The agent's memory, disk or a limit is exhausted."""

    code = 13


class IoError(Error, OSError):
    """The operating system failed a call."""

    code = 14


class InternalError(Error):
    """A bug in Lockstep."""

    code = 15


_BY_CODE = {kind.code: kind for kind in Error.__subclasses__()}


def from_code(code: int, message: str) -> Error:
    """The exception for a failed call; an unknown code keeps its number on the base class."""
    return _BY_CODE.get(code, Error)(message, code)


_BY_LABEL = {
    "usage": BadDataError,
    "config": BadDataError,
    "bad_data": BadDataError,
    "protocol": ProtocolError,
    "not_found": NotFoundError,
    "state": StateError,
    "unavailable": UnavailableError,
    "deadline": DeadlineError,
    "aborted": AbortedError,
    "permission": PermissionDeniedError,
    "resource_exhausted": ResourceExhaustedError,
    "io": IoError,
    "internal": InternalError,
}


def from_label(label: str, message: str) -> Error:
    """The exception for an error of the programs, which begins with ``label`` (common/base/status.h)."""
    return _BY_LABEL.get(label, Error)(message)


def bad_tensor(name: str, problem: str) -> BadDataError:
    """That a tensor breaks a rule."""
    return BadDataError(f'tensor "{name}": {problem}')
