"""This host's daemons, or others, seen and steered from Python: what ``lockstepctl --json`` answers, as dataclasses.

    agent = lockstep.control.Agent()
    model = agent.wait_served(receivers=2, timeout=60)
    receiver = lockstep.control.Receiver("unix:/run/raas-receiver/control.sock")
    receiver.rollback(to=41)

Fields have the names and units that ``lockstepctl --json`` has (proto/lockstep/v1). Those that a daemon of another
release does not have are at their defaults; those that it has and this package does not know are left out.
"""

import contextlib
import dataclasses
import os
import select
import subprocess
import time
from typing import Any, ClassVar, Generator, Sequence, Tuple, TypeVar

from lockstep import programs
from lockstep.core import arguments, places
from lockstep.core.answers import (
    AgentModel,
    AgentStatus,
    Archive,
    Change,
    Delta,
    Engine,
    Receipt,
    ReceiverModel,
    ReceiverStatus,
    Sync,
    TensorChange,
    VersionChanges,
    decoded,
    parsed,
)
from lockstep.core.errors import BadDataError, DeadlineError, Error, NotFoundError, from_label
from lockstep.core.fleet import EngineServed, Peer, VersionRef
from lockstep.core.served import Receivers, Served, wanted_receivers

__all__ = [
    "Agent",
    "AgentModel",
    "AgentStatus",
    "Archive",
    "Change",
    "Delta",
    "Engine",
    "EngineServed",
    "VersionRef",
    "Peer",
    "Receipt",
    "Receiver",
    "ReceiverModel",
    "ReceiverStatus",
    "Sync",
    "TensorChange",
    "Tls",
    "VersionChanges",
]

_Model = TypeVar("_Model", AgentModel, ReceiverModel)
_WORK_SECONDS = 600.0


@dataclasses.dataclass(frozen=True)
class Tls:
    """How a daemon with certificates is spoken to: PEM files. ``server_name``: that its certificate must have, where it
    is not the address's host."""

    cert: str = ""
    key: str = ""
    ca: str = ""
    server_name: str = ""


class _Daemon:
    _flag: ClassVar[str]
    _variable: ClassVar[str]  # of the environment, which names it where no address is given
    _place: ClassVar[str]  # of this host's, where neither is given

    def __init__(self, address: "str | None" = None, *, tls: "Tls | None" = None, timeout: float = 10.0) -> None:
        self._address = (
            address
            if address is not None
            else os.environ.get(self._variable) or f"unix:{places.socket(self._place, 'control.sock')}"
        )
        self._tls = tls
        self._timeout = timeout

    def _command(self, words: "Sequence[str]", timeout: "float | None") -> "list[str]":
        command = [programs.find("lockstepctl"), "--json"]
        command += [] if timeout is None else ["--timeout", f"{max(1, int(timeout * 1000))}ms"]
        arguments.text("address", self._address, "HOST:PORT or unix:PATH")
        command += [self._flag, self._address]
        for name, value in dataclasses.asdict(self._tls or Tls()).items():
            if value:
                command += [f"--tls-{name.replace('_', '-')}", value]
        return [*command, *words]

    def _ask(self, *words: str, timeout: "float | None" = None) -> Any:
        """What ``lockstepctl`` answers; its error as an exception."""
        return _answer(self._command(words, self._timeout if timeout is None else timeout))

    def _looks(self, timeout: "float | None") -> "Generator[Any, None, None]":
        """What one ``lockstepctl`` sees now, and whenever that is new; its error as an exception."""
        for look in _lines(self._command(["top", "--changes"], self._timeout), timeout, waits_for_first=True):
            if "error" in look:
                raise from_label(look["code"], look["error"])
            yield look


def _answer(command: "Sequence[str]") -> Any:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode == 0:
        return parsed(done.stdout)
    error = _failure(done.stderr)
    if isinstance(error, DeadlineError) and done.stdout:
        error.lacking = decoded(Served, parsed(done.stdout)).lacking
    raise error


def _lines(
    command: "Sequence[str]", timeout: "float | None", waits_for_first: bool = False
) -> "Generator[Any, None, None]":
    """What ``lockstepctl`` prints, a line each; its error as an exception. Ends after ``timeout`` seconds, but with
    ``waits_for_first`` not before the first line."""
    deadline = None if timeout is None else time.monotonic() + timeout
    pipes: "dict[str, Any]" = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with subprocess.Popen(command, **pipes) as process:
        try:
            out, err, read = process.stdout, process.stderr, b""
            assert out is not None and err is not None
            seen = select.poll()
            seen.register(out, select.POLLIN)
            while seen.poll(
                None if deadline is None or waits_for_first else 1000 * max(0.0, deadline - time.monotonic())
            ):
                part = os.read(out.fileno(), 1 << 16)
                if not part:
                    raise _failure(err.read())
                *lines, read = (read + part).split(b"\n")
                for line in lines:
                    waits_for_first = False
                    yield parsed(line)
        finally:
            process.kill()


class Agent(_Daemon):
    """A trainer_agent. Every call asks it again, by a process; ``watch`` has one for all that it sees.

    Args:
        address: of its control plane, "HOST:PORT" or "unix:PATH"; None: $LOCKSTEP_AGENT, then this host's.
        tls: how it is spoken to where it has certificates; None: $LOCKSTEP_TLS_CERT and its like, or plaintext.
        timeout: seconds that a call may take.

    Raises, from every method:
        UnavailableError: no agent answers. PermissionDeniedError: it does not let this peer. DeadlineError: not in time.
    """

    _flag = "--agent"
    _variable = "LOCKSTEP_AGENT"
    _place = "agent"

    def status(self) -> AgentStatus:
        """Everything it knows of its models and of their receivers."""
        return decoded(AgentStatus, self._ask("status"))

    def watch(self, timeout: "float | None" = None) -> "Generator[AgentStatus, None, None]":
        """Its status, and again whenever it is another, but for ages, within 0.1 s. Ends after ``timeout`` seconds."""
        for look in self._looks(timeout):
            yield decoded(AgentStatus, look)

    def model(self, name: "str | None" = None) -> AgentModel:
        """One model; None: the only one. NotFoundError, BadDataError where there are several."""
        return _only(self.status().models, name, "agent")

    def changes(
        self, version: "int | None" = None, *, after: "int | None" = None, model: "str | None" = None
    ) -> "Tuple[VersionChanges, ...]":
        """What ``version`` (None: the newest) changed of the one before, or each version after ``after`` up to it, tensor by
        tensor. The agent knows the newest versions of a run. NotFoundError: not that one."""
        words = [] if version is None else [str(arguments.version_number(version))]
        if after is not None:
            words = [str(arguments.version_number(after)), *(words or [str(self.model(model).newest_version)])]
        return tuple(decoded(VersionChanges, one) for one in self._ask("diff", *_named(model), *words))

    def drop(self, model: str) -> int:
        """Has the agent forget a model after its trainer ended; receivers keep what they hold. Returns the number of
        bytes that this frees. NotFoundError: the agent has no such model. StateError: a trainer is connected."""
        return int(self._ask("drop", *_named(model))["freed_bytes"])

    def wait_served(
        self,
        version: "int | None" = None,
        *,
        receivers: "Receivers | None" = None,
        model: "str | None" = None,
        timeout: "float | None" = None,
    ) -> AgentModel:
        """Waits until receivers serve a version, or a newer one, of the run that is current then.

        Args:
            version: None: the newest of when this is called.
            receivers: as for ``Publisher.wait_served``.
            model: None: the only one.
            timeout: seconds; None waits for ever.

        Raises:
            DeadlineError: the time is up; the text says what each receiver serves and holds, and its last error;
                ``lacking`` has those that lack the version.
        """
        words = ["wait-served", *_named(model)]
        words += [] if version is None else ["--to", str(arguments.version_number(version))]
        count, _, names = wanted_receivers(receivers, None)
        words += ["--receivers", str(count)] if count else [f"--name={name}" for name in names]
        _answer(self._command(words, timeout))
        return self.model(model)


class Receiver(_Daemon):
    """A raas_receiver. Every call asks it again. Arguments and errors as ``Agent``; without an address: $LOCKSTEP_RECEIVER,
    then this host's."""

    _flag = "--receiver"
    _variable = "LOCKSTEP_RECEIVER"
    _place = "receiver"

    def status(self) -> ReceiverStatus:
        """Everything it knows of its models and engines."""
        return decoded(ReceiverStatus, self._ask("status"))

    def watch(self, timeout: "float | None" = None) -> "Generator[ReceiverStatus, None, None]":
        """As of ``Agent``."""
        for look in self._looks(timeout):
            yield decoded(ReceiverStatus, look)

    def syncs(self, model: "str | None" = None, timeout: "float | None" = None) -> "Generator[Sync, None, None]":
        """Each sync of a model, or of all, as it ends, failed ones too; first the newest of each model that has ended before.
        Ends after ``timeout`` seconds. UnavailableError: the receiver ended. NotFoundError: it has no such model."""
        for line in _lines(self._command(["watch", *_named(model)], None), timeout):
            yield decoded(Sync, line)

    def model(self, name: "str | None" = None) -> ReceiverModel:
        """One model; None: the only one. NotFoundError, BadDataError where there are several."""
        return _only(self.status().models, name, "receiver")

    def receipts(
        self,
        model: "str | None" = None,
        *,
        engine: "str | None" = None,
        version: "int | None" = None,
        began: "float | None" = None,
        ended: "float | None" = None,
        keys: "str | os.PathLike[str] | None" = None,
    ) -> "Tuple[Receipt, ...]":
        """What engines served, the newest 1,000 of what is asked for, in the order of time.

        Args:
            engine, version: None: any. began, ended: those of a time that overlaps, in seconds as of ``time.time()``.
            keys: a PEM file of Ed25519 public keys, one of which must have signed each receipt (``--archive-key``).

        Raises:
            PermissionDeniedError: a receipt is not signed by one of ``keys``.
        """
        words = ["receipt", *_named(model)]
        words += [] if engine is None else ["--engine", arguments.text("engine", engine, "an engine's name").decode()]
        words += [] if version is None else ["--version", str(arguments.version_number(version))]
        words += [] if began is None else ["--from", f"{began:.6f}"]
        words += [] if ended is None else ["--until", f"{ended:.6f}"]
        words += [] if keys is None else ["--keys", os.fspath(keys)]
        return tuple(decoded(Receipt, one["says"]) for one in self._ask(*words))

    def pull(self, model: "str | None" = None, *, full: bool = False, timeout: float = _WORK_SECONDS) -> Sync:
        """Has it pull the newest version now, which ends what a rollback holds. AbortedError: the sync failed, or an
        engine did not take the version; the text says why."""
        return decoded(Sync, self._ask("pull", *_named(model), *(["--full"] if full else []), timeout=timeout))

    def rollback(
        self,
        model: "str | None" = None,
        *,
        to: "int | None" = None,
        skip: "int | None" = None,
        timeout: float = _WORK_SECONDS,
    ) -> ReceiverModel:
        """Has it return to another version: ``to``, or the one before, which stays until ``pull``; or to the one before
        ``skip``, if that is current, until there is a newer one. StateError: it does not hold what is to be current."""
        if to is not None and skip is not None:
            raise BadDataError("rollback: give to or skip, one of them")
        words = [] if to is None else ["--to", str(arguments.version_number(to))]
        words += [] if skip is None else ["--not", str(arguments.version_number(skip))]
        return decoded(ReceiverModel, self._ask("rollback", *_named(model), *words, timeout=timeout))

    def wait(
        self,
        version: int,
        model: "str | None" = None,
        *,
        timeout: "float | None" = None,
        after: "VersionRef | None" = None,
    ) -> ReceiverModel:
        """Waits until it holds ``version`` or a newer one, and its engines serve it. Versions of a new run begin again: to
        wait for what comes next, give as ``after`` what was ``held`` before. DeadlineError: the time is up; the text says
        what it holds and serves, and the last error."""
        wanted = arguments.version_number(version)
        with contextlib.closing(self.watch(timeout)) as looks:
            for status in looks:
                now = _only(status.models, model, "receiver")
                served = now.served_version if now.served_run == now.held.run else 0
                if now.held != after and min(now.held.version, served) >= wanted:
                    return now
        raise DeadlineError(
            f"version {wanted} is not served within {timeout:g} s: {now.held.version} is held, "
            f"{now.served_version} is served, state {now.state}{_error(now.last_error)}"
        )


def _named(model: "str | None") -> "list[str]":
    return [] if model is None else ["--model", arguments.text("model", model, arguments.MODEL_NAME).decode()]


def _only(models: "Sequence[_Model]", name: "str | None", daemon: str) -> _Model:
    names = [model.name for model in models]
    if name is None and len(models) > 1:
        raise BadDataError(f"the {daemon} has several models, name one of them: {', '.join(names)}")
    for model in models:
        if name in (None, model.name):
            return model
    known = f"it has {', '.join(names)}" if names else "it has none yet"
    raise NotFoundError(f"the {daemon} has no model{'' if name is None else f' {name}'}; {known}")


def _error(text: str) -> str:
    return f" ({text})" if text else ""


def _failure(said: bytes) -> Error:
    """What ``lockstepctl`` ended with, behind what it waited for."""
    last = ("\n" + said.decode(errors="replace").strip()).rpartition("\nlockstepctl: ")[2]
    label, _, sentence = last.partition(": ")
    return from_label(label, sentence or last)
