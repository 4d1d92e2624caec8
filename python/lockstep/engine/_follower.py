"""Follower: keeps a live module's parameters in step with a receiver, in place."""

import contextlib
import json
import logging
import os
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterator, Union

from lockstep.core import arguments
from lockstep.core.errors import BadDataError, Error, ProtocolError, StateError, UnavailableError
from lockstep.core.forked import close_after_fork
from lockstep.core.keywords import takes
from lockstep.core.peer import LINE
from lockstep.engine._agreement import Placed, placed
from lockstep.engine._connection import Connection, Message, MessageType, RefusedError, ask_layout
from lockstep.engine._describe import Contents
from lockstep.engine._gate import Gate, Reading
from lockstep.engine._memory import Memory
from lockstep.engine._options import DescribeKeywords, DescribeOptions
from lockstep.engine._rank import ORDERS, MovedError, Rank
from lockstep.engine._recorded import Recorded, all_parameters
from lockstep.engine._served import Served

if TYPE_CHECKING:
    from typing_extensions import Unpack


_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_LAST_GROUP = 65_535
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
# A receiver may refuse one time for a reason that passes: another rank was lost, an old process is still there.
_FINAL_REFUSALS = 2
_REASON_BYTES = 4096


class Follower:
    """Writes versions into a module's parameters, as the receiver on this host computes them, and decides when they may
    be read.

    A thread of its own attaches to the receiver, and attaches again after the receiver went away. Parameters stay where
    they are, on the CPU or on GPUs, in memory of any kind; no other process reaches it. Where the program itself gives a
    parameter other memory or another form (``p.data = ...``, ``load_state_dict(assign=True)``, ``module.to(...)``), the
    follower finds that at the next version or comparison. It attaches again with the module as it is then, and nothing is
    served until a whole version is written. Until then it keeps the old memory.

    Readers may be any threads:

        with follower.serving() as served:
            answer = model(prompt)  # weights do not change inside; all of it is by served.run and served.version

    and tasks of an event loop ``async with follower.serving() as served``.

    With ``compare_only`` other code writes the parameters, such as an engine that loads the receiver's directory. The
    receiver only compares them, when ``lockstepctl verify --engines`` asks.

    In a forked process the follower is closed, and no commit waits for readers there. The module there stays as it was
    at the fork, perhaps a mix of versions.

    Args:
        module: what this rank has of the model.
        model: the receiver's name for the model.
        socket: the receiver's ``--engine-socket``; None: $LOCKSTEP_ENGINE_SOCKET, or that of this host's receiver.
        engine_name: the ranks of one engine have one name; several engines of one model have different ones.
        group: the ranks that share one copy of the model have one number, from 0; another copy that the same server
            holds has another.
        incarnation: a name that all ranks of one start of an engine share, and no rank of another start has. The
            default names the process that started this one.
        gate: False for servers that the receiver's driver pauses: the follower answers a PAUSE at once, and ``serving``
            must not be used.
        after_write: the follower's thread calls it with each new version that it has written, before a reader reads it.
            An engine computes tensors from parameters there. While it fails, nothing is served.
        check: it is called before the module is described: at first, and again after a parameter moved. It raises
            ``BadDataError`` where the engine computes something from parameters that ``after_write`` does not.
        compare_only: the receiver never writes here; ``serving`` and ``wait_for`` must not be used.
        process_group: a torch.distributed group whose ranks are ``rank`` of ``world``, where these may be on several hosts, with a
            receiver each. All of them make their followers together. They then serve a version only when all hosts have it.
        server: the URL of the server on this host that pauses this rank, if the receiver's ``--allow-engines`` admits
            it without configuration.
        recorded: the engine's own loader, of the plugins. It says what parameters are made of, once the receiver knows the model's
            tensors; ``slices`` and ``padding`` do not then.
        options: those of ``DescribeOptions``, as ``describe`` takes them.

    Attributes:
        incarnation: as above. A server with followers that have no gate reports it to the receiver's driver.

    Raises:
        BadDataError: the module cannot be described, or its memory cannot be written; the text names the parameter.
    """

    @takes(DescribeKeywords)
    def __init__(
        self,
        module: Any,
        *,
        model: str,
        socket: "Union[str, os.PathLike[str], None]" = None,
        engine_name: str = "default",
        group: int = 0,
        incarnation: "str | None" = None,
        gate: bool = True,
        after_write: "Callable[[Served], Any] | None" = None,
        check: "Callable[[], Any] | None" = None,
        compare_only: bool = False,
        process_group: Any = None,
        server: str = "",
        recorded: "Recorded | None" = None,
        **options: "Unpack[DescribeKeywords]",
    ) -> None:
        incarnation = _starter() if incarnation is None else incarnation
        for what, name in (("model", model), ("engine_name", engine_name), ("incarnation", incarnation)):
            if not (isinstance(name, str) and _NAME.fullmatch(name)):
                raise BadDataError(f"{what} {name!r}: names are 1 to 128 letters, digits, '.', '_' and '-'")
        if not (type(group) is int and 0 <= group <= _LAST_GROUP):
            raise BadDataError(f"group {group!r}: groups are numbers from 0 to {_LAST_GROUP}")
        self._socket = arguments.engine_socket(socket)
        self._gated, self._compares = gate and not compare_only, compare_only
        described = DescribeOptions(**options)
        among = Placed(None, [], incarnation)
        if process_group is not None:
            among = placed(process_group, self._socket, incarnation, described.rank, described.world)
        self.incarnation = among.incarnation
        self._contents = Contents(module, described, recorded, check, compare_only)
        self._after_write = after_write
        self._attach: "dict[str, Any]" = {
            "peer": LINE,
            "model": model,
            "engine": engine_name,
            "group": group,
            "incarnation": self.incarnation,
            "gated": self._gated,
            **({"server": server} if server else {}),
            **({"here": among.here} if among.agreement is not None else {}),
        }
        self._memory = self._described() if recorded is None else Memory(module, all_parameters(module))

        self._gate = Gate(readers=self._gated)
        self._rank = Rank(
            self._memory,
            self._gate,
            receiver=self._socket,
            compares=compare_only,
            after_write=self._written,
            agreement=among.agreement,
        )
        self._error: "str | None" = None  # of the connection
        # The follower thread's.
        self._attached = False
        self._had_serve = False
        self._refusals = 0  # in a row, without a version between
        self._warned: "set[str]" = set()  # of what, since the last version

        self._stopping = threading.Event()
        # This connection is to end, and the follower's thread to attach again, or to end.
        self._soon = threading.Event()
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
        return self._rank.error() or self._error or self._rank.long_wait()

    @property
    def pauses(self) -> "list[float]":
        """Seconds from each PAUSE, readers gone, to the version being served again; the last 1024."""
        return list(self._rank.pauses)

    def serving(self, timeout: "float | None" = None) -> Reading:
        """For ``with`` and ``async with``. While inside, weights stay those of the version it gives. Entering waits while
        there is none or it is being written; inside, a thread may come in again. A parameter that the program itself moves
        is not noticed here, but at the next version or comparison.

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

    def wait_for(
        self, version: "int | None" = None, timeout: "float | None" = None, *, after: "Served | None" = None
    ) -> Served:
        """Waits until a version is served, or one that is ``version`` or later. Versions of a new run begin again: to wait
        for the next one of any run, give as ``after`` what ``serving`` or ``wait_for`` gave last. Raises as ``serving``; the
        text has the follower's error."""
        self._check_serves()
        try:
            return self._gate.wait_for(version, timeout, after)
        except Error as error:
            if self.error is None or self.error in str(error):
                raise
            raise type(error)(f"{error}: {self.error}") from None

    def sleep(self, kept: bool = False) -> bool:
        """Call this before the parameters' memory goes, or before other code writes it, from any thread that is not
        inside ``serving``. After it returns, no reader reads the memory and the follower does not write it, until
        ``wake``.

        Args:
            kept: every byte will be there again at ``wake``, and the receiver compares them. Otherwise, or after
                another call without it, the receiver then writes a whole version.

        Returns:
            Whether the memory was there until now. Where it was not, another caller has said so, and calls ``wake``.
        """
        with self._rank.lock:
            if self._stopping.is_set():
                return False
            begins = self._rank.sleep(kept, given_up=self._stopping.is_set)
            if begins:
                self._reconnect()
            return begins

    def wake(self) -> None:
        """Call this when the memory is there again, and no other code writes it. Where parameters lie elsewhere by then,
        nothing was ``kept``. Does nothing if the rank is not asleep."""
        with self._rank.lock:
            if self._rank.wake():
                self._reconnect()

    def close(self) -> None:
        """Follows no more; waiting readers get StateError. Weights stay: whole, unless they were being written."""
        self._stopping.set()
        self._soon.set()
        # The connection first: once the gate is closed its writer no longer waits for readers, and must not send PAUSED.
        self._disconnect()
        self._gate.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> "Follower":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _close_after_fork(self) -> None:
        """The connection must end with the process that owns the module."""
        self._error = "this process was forked off the one that follows"
        self._gate.close_after_fork(self._error)
        self._stopping = threading.Event()
        self._stopping.set()
        self._connection_lock = threading.Lock()
        self._rank.lock = threading.Lock()
        self._soon = threading.Event()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _disconnect(self) -> None:
        with self._connection_lock:
            if self._connection is not None:
                self._connection.shutdown()

    def _reconnect(self) -> None:
        """Under the rank's lock: the follower's thread attaches again, with what this rank is now."""
        self._soon.set()
        self._disconnect()

    def _check_serves(self) -> None:
        if self._rank.compares:
            raise StateError("this follower compares only: another writes the parameters and knows what they are")

    def _described(self) -> Memory:
        """Where the parameters lie now; their description is for ATTACH. BadDataError names what cannot be described."""
        memory, self._attach["description"] = self._contents.describe()
        return memory

    def _written(self, served: Served) -> None:
        self._contents.compute()
        if self._after_write is not None:
            self._after_write(served)

    # --- the follower's thread ---

    def _run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._stopping.is_set():
            self._attached = self._had_serve = refused = False
            self._soon.clear()
            try:
                self._ask()
                self._look_again()
                with self._memory.on_device():
                    self._follow()
            except Exception as error:  # whatever it is, the module must not be left half-followed in silence
                if not self._soon.is_set():
                    self._error = str(error) or repr(error)
                    if not isinstance(error, UnavailableError):  # a receiver that is away is nothing to look into
                        self._warn(self._error)
                refused = isinstance(error, (RefusedError, BadDataError))  # or the module cannot be described any more
            with self._rank.lock:
                self._rank.drop()
                self._part()
            self._count_refusals(refused)
            if self._had_serve:  # to attach is not enough: each time the receiver pauses and writes the engine
                pause = _FIRST_PAUSE_SECONDS
            if not self._soon.wait(pause):
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _part(self) -> None:
        """Under the rank's lock: a connection has ended. Where other hosts cannot be asked, the rank waits on."""
        try:
            if self._attached:
                self._rank.leave()
            if not self._stopping.is_set():
                self._rank.resume()
        except UnavailableError as error:
            self._error = str(error)
            self._warn(self._error)

    def _warn(self, reason: str) -> None:
        """Says in this process' log why this rank does not follow: once, until a version was served again."""
        if self._had_serve:
            self._warned.clear()
        if reason not in self._warned:
            _log.warning("model %s, engine %s: %s", self._attach["model"], self._attach["engine"], reason)
        self._warned.add(reason)

    def _look_again(self) -> None:
        """Describes the module anew where a parameter moved. While the rank sleeps, more may move."""
        with self._rank.lock:
            moved = not self._rank.asleep and self._rank.moved() is not None
            if moved or "description" not in self._attach:
                self._memory = self._described()
                self._rank.take(self._memory)

    def _ask(self) -> None:
        """The model's tensors, which the engine's loader is to place. Waits until the receiver knows them; asks again when it refused
        this rank, for they may be others."""
        if self._contents.recorded is None or ("description" in self._attach and self._refusals == 0):
            return
        with self._connected() as connection:
            digest, tensors = ask_layout(connection, self._attach["model"])
        if self._contents.recorded.take(digest, tensors):
            self._attach.pop("description", None)

    def _count_refusals(self, refused: bool) -> None:
        """Runs after each connection. After refusals in a row waiting callers get the error; the follower tries on."""
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
                with self._rank.lock:
                    if self._soon.is_set():  # it was sent to what this rank is no more
                        for fd in message.fds:
                            os.close(fd)
                        raise UnavailableError(f"this rank attaches to {self._socket} again")
                    self._answer(connection, message)

    def _introduction(self) -> Message:
        with self._rank.lock:
            body = json.dumps({**self._attach, "state": self._rank.state()}).encode()
            return Message(MessageType.ATTACH, self._rank.holds, body)

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
            return
        for fd in message.fds:
            os.close(fd)
        if message.type == MessageType.REFUSED:
            raise RefusedError(f"{self._socket} does not take this rank: {message.body.decode(errors='replace')}")
        if message.type != MessageType.ATTACHED or message.fds or self._rank.asleep:
            raise ProtocolError(f"{self._socket}: {message.type.name} came before its time, or with descriptors")
        self._attached = True
        self._error = None

    def _obey(self, connection: Connection, order: Message) -> None:
        try:
            answer = self._rank.obey(order, given_up=connection.has_more)
        except Exception as error:
            if order.type not in (MessageType.PAUSE, MessageType.SERVE) or isinstance(error, MovedError):
                connection.send(Message(MessageType.REFUSED, body=(str(error) or repr(error)).encode()[:_REASON_BYTES]))
            raise
        self._had_serve = self._had_serve or order.type == MessageType.SERVE
        if answer is not None:
            connection.send(answer)
        if order.type == MessageType.SERVE:
            self._rank.release()


def _starter() -> str:
    """The process that started this one, as a name: its number, and when it was started."""
    parent = os.getppid()
    try:
        started = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        started = "0"  # of another process namespace
    return f"{parent}-{started}"
