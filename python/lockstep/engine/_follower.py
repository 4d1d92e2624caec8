"""Follower: keeps a live module's parameters in step with a receiver, in place."""

import collections
import contextlib
import json
import os
import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Iterator, Union

from lockstep.core.errors import BadDataError, Error, InternalError, ProtocolError, StateError, UnavailableError
from lockstep.core.forked import close_after_fork
from lockstep.core.peer import LINE
from lockstep.engine._connection import Connection, Message, MessageType
from lockstep.engine._describe import description_of
from lockstep.engine._gate import Gate, Reading
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
_LONG_WAIT_SECONDS = 30.0  # a rank that waits longer says so


class Follower:
    """Writes versions into a module's parameters, as the receiver on this host works them out, and decides when they
    may be read.

    A thread of its own attaches to the receiver and comes back whenever that went away. Parameters stay where they are,
    on the CPU or on GPUs, in memory of any kind; nobody else reaches it. Readers may be any threads:

        with follower.serving() as served:
            answer = model(prompt)  # weights do not change inside; all of it is by served.run and served.version

    and tasks of an event loop ``async with follower.serving() as served``.

    With ``compare_only`` another writes the parameters, such as an engine that loads the receiver's directory: the
    receiver only compares them, when ``lockstepctl verify --engines`` asks.

    A process that is forked off has a closed follower: it is not held. What it has of the module stays as it was
    at the fork, perhaps a mix.

    Args:
        module: what this rank has of the model.
        model: the receiver's name for the model.
        socket: the receiver's ``--engine-socket``.
        engine_name: the ranks of one engine have one name; several engines of one model have different ones.
        incarnation: a name that the ranks of one start of an engine have in common, and those of another start do not
            have; by default it is that of the process that started this one.
        gate: False for servers that are paused by the receiver's driver: a HOLD is answered at once, and ``serving`` is
            not to be used.
        after_write: called in the follower's thread with the version after each new one was written, before anybody
            reads it: where an engine computes tensors from parameters. While it fails, nothing is served.
        compare_only: the receiver never writes here; ``serving`` and ``wait_for`` are not to be used.
        server: the URL of the server that pauses this rank, on this host, where the receiver's ``--allow-engines`` lets
            it come without being configured.
        options: those of ``DescribeOptions``, as ``describe`` takes them.

    Attributes:
        incarnation: as above. A server whose followers have no gate tells the receiver's driver what it is.

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
        incarnation: "str | None" = None,
        gate: bool = True,
        after_write: "Callable[[Served], Any] | None" = None,
        compare_only: bool = False,
        server: str = "",
        **options: Any,
    ) -> None:
        incarnation = _starter() if incarnation is None else incarnation
        for what, name in (("model", model), ("engine_name", engine_name), ("incarnation", incarnation)):
            if not (isinstance(name, str) and _NAME.fullmatch(name)):
                raise BadDataError(f"{what} {name!r}: names are 1 to 128 letters, digits, '.', '_' and '-'")
        self.incarnation = incarnation
        self._socket = os.fspath(socket)
        self._compares = compare_only
        self._gated = gate and not compare_only
        self._after_write = after_write
        description = self._describe(module, DescribeOptions(**options))
        self._attach = {
            "peer": LINE,
            "model": model,
            "engine": engine_name,
            "incarnation": incarnation,
            "gated": self._gated,
            "description": description,
            **({"server": server} if server else {}),
        }

        self._gate = Gate(readers=self._gated)
        self._error: "str | None" = None  # of the connection
        self._broken: "str | None" = None  # of after_write
        self._late: "str | None" = None  # of readers that did not leave
        self._pauses: "collections.deque[float]" = collections.deque(maxlen=_KEPT_PAUSES)
        # The memory's: whoever has the lock may change what the module is, or whether it is there.
        self._memory_lock = threading.Lock()
        self._asleep = False
        self._at_sleep: "Served | None" = None  # what it held when it fell asleep
        self._reads: "Served | None" = None  # what may be read; None: the rank waits
        self._resumes: "Served | None" = None  # what was read before HOLD, while nothing was written since
        self._waits_since = time.monotonic()
        self._held_since: "float | None" = None  # its readers gone
        self._derived: "Served | None" = None  # what after_write was last done for
        # The follower thread's.
        self._known: "list[Served]" = []  # announced by the last HOLD, and read last: with their labels
        self._attached = False
        self._had_serve = False
        self._refusals = 0  # in a row, without a version between

        self._stopping = threading.Event()
        self._soon = (
            threading.Event()
        )  # this connection is to end, and the follower's thread to attach again, or to end
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
        """Why versions do not come: no receiver, refused, ``after_write`` failed, readers that did not leave, or a rank
        that has waited for long. None when all is well."""
        return self._broken or self._late or self._error or self._long_wait()

    @property
    def pauses(self) -> "list[float]":
        """Seconds from each HOLD, readers gone, to the version being served again; the last 1024."""
        return list(self._pauses)

    def serving(self, timeout: "float | None" = None) -> Reading:
        """For ``with`` and ``async with``. While inside, weights stay those of the version it gives. Entering waits while
        there is none or it is being written; inside, a thread may come in again.

        Raises, on entering:
            DeadlineError: that took longer than ``timeout`` seconds.
            StateError: the follower is closed, compares only, or has no gate; or there is nothing to serve, and the receiver has
                refused this rank twice in a row: the text has its reason; or ``with`` would have to wait while this
                thread runs an event loop, which those inside may need to leave.
        """
        self._check_serves()
        if not self._gated:
            raise StateError("this follower has no gate: the receiver's driver pauses the server")
        return self._gate.reading(timeout)

    def wait_for(self, version: "int | None" = None, timeout: "float | None" = None) -> Served:
        """Waits until a version is served, or one that is ``version`` or later. Raises as ``serving``; the text has
        the follower's error."""
        self._check_serves()
        try:
            return self._gate.wait_for(version, timeout)
        except Error as error:
            if self.error is None or self.error in str(error):
                raise
            raise type(error)(f"{error}: {self.error}") from None

    def sleep(self, kept: bool = False) -> None:
        """The parameters' memory goes, or somebody else will write it: called before that, from any thread that is not
        inside ``serving``. When this returns nobody reads it or writes it for the receiver, until ``wake``.

        Args:
            kept: every byte will be there again at ``wake``, which the receiver compares. Otherwise, or after another call
                without, a whole version is written then.
        """
        with self._memory_lock:
            if not self._asleep and not self._stopping.is_set():
                self._gate.shut(given_up=self._stopping.is_set)
                self._asleep = True
                self._at_sleep, self._own.holds = self._own.holds, None
                self._reads = self._resumes = self._derived = self._late = None
                self._reconnect()
            if not kept:
                self._at_sleep = None

    def wake(self) -> None:
        """The memory is there again, at the same addresses, and nobody else writes it. Not asleep: nothing."""
        with self._memory_lock:
            if self._asleep:
                self._asleep = False
                self._own.holds = self._at_sleep
                self._waits_since = time.monotonic()
                self._reconnect()

    def close(self) -> None:
        """Follows no more; waiting readers get StateError. Weights stay: whole, unless they were being written."""
        self._stopping.set()
        self._soon.set()
        # The connection first: once the gate is closed its writer no longer waits for readers, and must not send HELD.
        self._disconnect()
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
        self._memory_lock = threading.Lock()
        self._soon = threading.Event()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _disconnect(self) -> None:
        with self._connection_lock:
            if self._connection is not None:
                self._connection.shutdown()

    def _reconnect(self) -> None:
        """Under the memory's lock: the follower's thread attaches again, with what this rank is now."""
        self._soon.set()
        self._disconnect()

    def _check_serves(self) -> None:
        if self._compares:
            raise StateError("this follower compares only: another writes the parameters and knows what they are")

    def _long_wait(self) -> "str | None":
        seconds = time.monotonic() - self._waits_since
        if self._compares or self._reads is not None or self._asleep or seconds < _LONG_WAIT_SECONDS:
            return None
        holds = "no whole version" if self._own.holds is None else f"version {self._own.holds.version}"
        return f"this rank has waited for {seconds:.0f} s to be told by {self._socket} what to serve; it holds {holds}"

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
                self._attached = self._had_serve = refused = False
                self._soon.clear()
                try:
                    self._follow()
                except Exception as error:  # whatever it is, the module must not be left half-followed in silence
                    if not self._soon.is_set():
                        self._error = str(error) or repr(error)
                    refused = isinstance(error, _Refused)
                with self._memory_lock:
                    self._own.drop()
                    if not self._stopping.is_set():
                        self._resume()
                self._count_refusals(refused)
                if self._had_serve:  # to attach is not enough: each time the receiver pauses and writes the engine
                    pause = _FIRST_PAUSE_SECONDS
                if not self._soon.wait(pause):
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
            connection.send(self._introduction())
            while True:
                message = connection.receive()
                with self._memory_lock:
                    if self._soon.is_set():  # it was sent to what this rank is no more
                        for fd in message.fds:
                            os.close(fd)
                        raise UnavailableError(f"this rank attaches to {self._socket} again")
                    self._answer(connection, message)

    def _introduction(self) -> Message:
        with self._memory_lock:
            body = json.dumps({**self._attach, "state": self._state()}).encode()
            return Message(MessageType.ATTACH, self._own.holds, body)

    def _state(self) -> str:
        if self._asleep:
            return "asleep"
        if self._compares:
            return "comparing"
        return "waiting" if self._reads is None else "reading"

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
        if self._attached and message.type in ORDERS:
            self._obey(connection, message)
        elif message.fds:
            for fd in message.fds:
                os.close(fd)
            raise ProtocolError(f"{self._socket}: {message.type.name} came with descriptors, or before its time")
        elif message.type == MessageType.REFUSED:
            raise _Refused(f"{self._socket} does not take this rank: {message.body.decode(errors='replace')}")
        elif message.type == MessageType.ATTACHED and not self._asleep:
            self._attached = True
            self._error = None
        elif not self._attached or message.version is None:
            raise ProtocolError(f"{self._socket}: {message.type.name} came before its time, or without a version")
        elif message.type == MessageType.HOLD and not self._compares:
            self._hold(connection, replace(message.version, label=message.body.decode(errors="replace")))
            connection.send(Message(MessageType.HELD))
        elif message.type == MessageType.SERVE:
            self._serve(message.version)
            self._had_serve = True
            connection.send(Message(MessageType.SERVING))
            self._own.tidy()
        else:
            raise ProtocolError(f"{self._socket}: a receiver does not send {message.type.name}")

    def _obey(self, connection: Connection, order: Message) -> None:
        if order.type == MessageType.WRITE:
            self._resumes = None
        try:
            answer = self._own.obey(order, self._compares or self._reads is not None)
        except Exception as error:
            connection.send(Message(MessageType.REFUSED, body=(str(error) or repr(error)).encode()[:_REASON_BYTES]))
            raise
        if answer is not None:
            connection.send(answer)

    def _hold(self, connection: Connection, announced: Served) -> None:
        """Nothing reads the parameters from here on. UnavailableError: the receiver waits no longer for readers."""
        self._known = [announced, *self._known[-1:]]
        if self._reads is not None:
            self._resumes, self._reads = self._reads, None
            self._waits_since = time.monotonic()
            try:
                self._gate.shut(given_up=connection.has_more)
            except StateError as error:
                seconds = time.monotonic() - self._waits_since
                self._late = f"{self._socket} held this rank for {seconds:.1f} s, and {error}"
                raise UnavailableError(self._late) from error
            self._late = None
            synchronize(self._parameters)
        self._held_since = time.monotonic()

    def _serve(self, served: Served) -> None:
        if self._own.holds != served:
            raise ProtocolError(f"{self._socket}: {served} cannot be served: {self._own.holds} is in memory")
        if self._reads is None:
            self._read(served)

    def _resume(self) -> None:
        """The connection has ended. What was not written since HOLD may be read again (FORMAT.md, "A commit")."""
        if self._resumes is not None:
            self._read(self._resumes)

    def _read(self, served: Served) -> None:
        """The module reads ``served`` from here on. After an exception the rank waits."""
        served = next((known for known in self._known if known == served), served)
        if served != self._derived:
            self._derive(served)
        self._known = [served]
        if self._held_since is not None:
            self._pauses.append(time.monotonic() - self._held_since)
        self._reads, self._resumes, self._held_since = served, None, None
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


def _starter() -> str:
    """The process that started this one, as a name: its number, and when it was started."""
    parent = os.getppid()
    try:
        started = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        started = "0"  # of another process namespace
    return f"{parent}-{started}"


class _Refused(StateError):
    """The receiver does not take this rank, or no longer."""
