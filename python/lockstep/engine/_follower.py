"""Follower: keeps a live module's parameters in step with a receiver, in place."""

import collections
import contextlib
import json
import os
import re
import threading
import time
from dataclasses import replace
from typing import Any, Callable, Iterator, Union

from lockstep.core.errors import BadDataError, Error, InternalError, ProtocolError, StateError, UnavailableError
from lockstep.core.forked import close_after_fork
from lockstep.core.peer import LINE
from lockstep.engine._connection import Connection, Message, MessageType
from lockstep.engine._control_page import ControlPage, EngineState
from lockstep.engine._describe import description_of
from lockstep.engine._gate import Gate
from lockstep.engine._memory import Memory, on_device, synchronize
from lockstep.engine._options import DescribeOptions
from lockstep.engine._own_writes import ORDERS, OwnWrites
from lockstep.engine._parameters import parameters_of
from lockstep.engine._served import Served

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
_KEPT_PAUSES = 1024
# A receiver may refuse one time for a reason that passes: another rank was lost, an old process is still there.
_FINAL_REFUSALS = 2
_REASON_BYTES = 4096


class Follower:
    """Writes versions into a module's parameters, as the receiver on this host works them out, and decides when they
    may be read.

    A thread of its own attaches to the receiver and comes back whenever that went away. Parameters stay where they are,
    on the CPU or on GPUs, in memory of any kind; nobody else reaches it. Readers may be any threads:

        with follower.serving() as served:
            answer = model(prompt)  # weights do not change inside; all of it is by served.run and served.version

    A process that is forked off has a closed follower: it is not held. What it has of the module stays as it was
    at the fork, perhaps a mix.

    Args:
        module: what this rank has of the model.
        model: the receiver's name for the model.
        socket: the receiver's ``--engine-socket``.
        engine_name: the ranks of one engine have one name; several engines of one model have different ones.
        gate: False for servers that are paused by the receiver's driver: a HOLD is answered at once, and ``serving`` is
            not to be used.
        after_write: called in the follower's thread with the version after each new one was written, before anybody
            reads it: where an engine computes tensors from parameters. While it fails, nothing is served.
        options: those of ``DescribeOptions``, as ``describe`` takes them.

    Raises:
        BadDataError: the module cannot be described, or its memory not be written; the text names the parameter.
    """

    def __init__(
        self,
        module: Any,
        *,
        model: str,
        socket: "Union[str, os.PathLike[str]]",
        engine_name: str = "default",
        gate: bool = True,
        after_write: "Callable[[Served], Any] | None" = None,
        **options: Any,
    ) -> None:
        for what, name in (("model", model), ("engine_name", engine_name)):
            if not (isinstance(name, str) and _NAME.fullmatch(name)):
                raise BadDataError(f"{what} {name!r}: names are 1 to 128 letters, digits, '.', '_' and '-'")
        self._socket = os.fspath(socket)
        self._gated = gate
        self._after_write = after_write
        description = self._describe(module, DescribeOptions(**options))
        attach = {"peer": LINE, "model": model, "engine": engine_name, "description": description}
        self._attach = json.dumps(attach if gate else {**attach, "gated": False}).encode()
        self._world = description["world"]

        self._gate = Gate()
        self._error: "str | None" = None  # of the connection
        self._broken: "str | None" = None  # of after_write
        self._pauses: "collections.deque[float]" = collections.deque(maxlen=_KEPT_PAUSES)
        # The follower thread's. What the module reads or read last, and what after_write was last done for.
        self._current: "Served | None" = None
        self._derived: "Served | None" = None
        self._held_since: "float | None" = None  # held: nothing reads
        self._announced: "Served | None" = None  # by the last HOLD, with its label
        self._page: "ControlPage | None" = None
        self._changes_at_attach = 0
        self._had_serve = False
        self._refusals = 0  # in a row, without a version between

        self._stopping = threading.Event()
        self._connection_lock = threading.Lock()
        self._connection: "Connection | None" = None
        close_after_fork(self)
        self._thread = threading.Thread(target=self._run, name="lockstep-follower", daemon=True)
        self._thread.start()

    @property
    def served(self) -> "Served | None":
        """The version that may be read now; None while there is none, or one is being written."""
        return self._gate.served

    @property
    def error(self) -> "str | None":
        """Why versions do not come: no receiver, refused, ``after_write`` failed. None when all is well."""
        return self._broken or self._error

    @property
    def pauses(self) -> "list[float]":
        """Seconds from each HOLD, readers gone, to the version being served again; the last 1024."""
        return list(self._pauses)

    @contextlib.contextmanager
    def serving(self, timeout: "float | None" = None) -> "Iterator[Served]":
        """While inside, weights stay those of the version it gives. Waits while there is none or it is being written;
        inside, a thread may come in again.

        Raises:
            DeadlineError: that took longer than ``timeout`` seconds.
            StateError: the follower is closed, or has no gate; or there is nothing to serve, and the receiver has
                refused this rank twice in a row: the text has its reason.
        """
        if not self._gated:
            raise StateError("this follower has no gate: the receiver's driver pauses the server")
        with self._gate.reading(timeout) as served:
            yield served

    def wait_for(self, version: "int | None" = None, timeout: "float | None" = None) -> Served:
        """Waits until a version is served, or one that is ``version`` or later. Raises as ``serving``; the text has
        the follower's error."""
        try:
            return self._gate.wait_for(version, timeout)
        except Error as error:
            if self.error is None or self.error in str(error):
                raise
            raise type(error)(f"{error}: {self.error}") from None

    def close(self) -> None:
        """Follows no more; waiting readers get StateError. Weights stay: whole, unless the follower was held."""
        self._stopping.set()
        # The connection first: once the gate is closed its writer no longer waits for readers, and must not send HELD.
        with self._connection_lock:
            if self._connection is not None:
                self._connection.shutdown()
        self._gate.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> "Follower":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _close_after_fork(self) -> None:
        """The connection must end with the process whose module it is."""
        self._error = "this process was forked off the one that follows"
        self._gate.close_after_fork(self._error)
        self._stopping = threading.Event()
        self._stopping.set()
        self._connection_lock = threading.Lock()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _describe(self, module: Any, options: DescribeOptions) -> "dict[str, Any]":
        """The description of the module's parameters."""
        engine, self._parameters = parameters_of(module, options)
        self._memory = Memory(self._parameters)
        self._own = OwnWrites(self._memory.places)
        sizes = [place.size for place in self._memory.places]
        return description_of(engine, options, self._parameters, self._memory.locations, sizes)

    # --- the follower's thread ---

    def _run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        with on_device(self._parameters):
            while not self._stopping.is_set():
                self._page = None
                self._had_serve = False
                refused = False
                try:
                    self._follow()
                except Exception as error:  # whatever it is, the module must not be left half-followed in silence
                    self._error = str(error) or repr(error)
                    refused = isinstance(error, _Refused)
                self._own.drop()
                self._count_refusals(refused)
                if self._had_serve:  # to attach is not enough: each time the receiver pauses and writes the engine
                    pause = _FIRST_PAUSE_SECONDS
                self._stopping.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _count_refusals(self, refused: bool) -> None:
        """After a connection. One without an end to refusals is an error for who waits; the follower tries on."""
        if self._had_serve:
            self._refusals = 0
        self._refusals = self._refusals + 1 if refused else 0
        self._gate.refuse(self._error if self._refusals >= _FINAL_REFUSALS else None)

    def _follow(self) -> None:
        """One connection, until it ends: always by an exception."""
        with self._connected() as connection:
            attached_with = self._current if self._held_since is None else None
            connection.send(Message(MessageType.ATTACH, attached_with, self._attach))
            while True:
                try:
                    message = connection.receive()
                    self._answer(connection, message)
                except (UnavailableError, _Refused):
                    # Not when it is close() that has ended the connection: the receiver may be writing what is held.
                    if not self._stopping.is_set():
                        self._resume_by_page(attached_with)
                    raise

    @contextlib.contextmanager
    def _connected(self) -> "Iterator[Connection]":
        with Connection(self._socket) as connection:
            with self._connection_lock:
                self._connection = connection
            try:
                connection.connect()
                if self._stopping.is_set():  # close() saw no connection, or one that was not connected
                    raise StateError("the follower is closed")
                yield connection
            finally:
                with self._connection_lock:
                    self._connection = None

    def _answer(self, connection: Connection, message: Message) -> None:
        if message.type == MessageType.ATTACHED:
            self._take_page(message)
        elif self._page is not None and message.type in ORDERS:
            self._obey(connection, message)
        elif message.fds:
            for fd in message.fds:
                os.close(fd)
            raise ProtocolError(f"{self._socket}: {message.type.name} came with descriptors, or before its time")
        elif message.type == MessageType.REFUSED:
            raise _Refused(f"{self._socket} does not take this rank: {message.body.decode(errors='replace')}")
        elif self._page is None or message.version is None:
            raise ProtocolError(f"{self._socket}: {message.type.name} came before its time, or without a version")
        elif message.type == MessageType.HOLD:
            self._announced = replace(message.version, label=message.body.decode(errors="replace"))
            self._hold()
            connection.send(Message(MessageType.HELD))
        elif message.type == MessageType.SERVE:
            self._hold()
            self._resume(message.version)
            self._had_serve = True
            connection.send(Message(MessageType.SERVING))
            self._own.tidy()
        else:
            raise ProtocolError(f"{self._socket}: a receiver does not send {message.type.name}")

    def _obey(self, connection: Connection, order: Message) -> None:
        try:
            answer = self._own.obey(order, self._held_since is None)
        except Exception as error:
            connection.send(Message(MessageType.REFUSED, body=(str(error) or repr(error)).encode()[:_REASON_BYTES]))
            raise
        if answer is not None:
            connection.send(answer)

    def _take_page(self, message: Message) -> None:
        if len(message.fds) != 1:
            for fd in message.fds:
                os.close(fd)
            raise ProtocolError(f"{self._socket}: ATTACHED came with {len(message.fds)} descriptors, not one")
        self._page = ControlPage(message.fds[0], self._world)
        self._changes_at_attach = self._page.read().changes
        self._error = None

    def _hold(self) -> None:
        """Nothing reads the parameters from here on."""
        if self._held_since is not None:
            return
        self._gate.shut(wait=self._gated)
        synchronize(self._parameters)
        self._held_since = time.monotonic()

    def _resume(self, served: Served) -> None:
        """The module reads ``served`` from here on. After an exception it stays held."""
        if self._own.holds != served:
            raise ProtocolError(f"{self._socket}: {served} cannot be served: {self._own.holds} is in memory")
        served = next((known for known in (self._announced, self._current) if known == served), served)
        if served != self._derived:
            self._derive(served)
        self._current = served
        if self._held_since is not None:
            self._pauses.append(time.monotonic() - self._held_since)
            self._held_since = None
        self._gate.open(served)

    def _derive(self, served: Served) -> None:
        self._derived = None
        if self._after_write is not None:
            try:
                self._after_write(served)
                synchronize(self._parameters)
            except Exception as error:
                self._broken = f"after_write failed for version {served.version}: {error!r}"
                raise InternalError(self._broken) from error
        self._broken = None
        self._derived = served

    def _resume_by_page(self, attached_with: "Served | None") -> None:
        """The receiver has ended the connection. A rank that is not held goes on. One that is held resumes where the page
        names its version, and else stays held: its memory may be a mix (FORMAT.md, "When the connection ends")."""
        if self._held_since is None or self._page is None:
            return
        page = self._page.read()
        ours = page.changes != self._changes_at_attach or self._had_serve or page.version == attached_with
        if page.state != EngineState.SERVING or page.version is None:
            return
        if ours and self._own.holds == page.version:
            self._resume(page.version)


class _Refused(StateError):
    """The receiver does not take this rank, or no longer."""
