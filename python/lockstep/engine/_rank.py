"""Rank: what one rank of an engine holds, and what reads it. Follower uses it and brings the receiver's messages."""

import collections
import contextlib
import os
import threading
import time
from dataclasses import replace
from typing import Any, Callable

import torch

from lockstep.core.errors import InternalError, ProtocolError, StateError, UnavailableError
from lockstep.engine._agreement import Agreement, Step
from lockstep.engine._connection import Message, MessageType
from lockstep.engine._gate import Gate
from lockstep.engine._memory import Memory
from lockstep.engine._served import Served
from lockstep.engine._writer import Writer

_LONG_WAIT_SECONDS = 30.0  # a rank that waits longer says so
_KEPT_PAUSES = 1024

# What it obeys once it is attached.
ORDERS = frozenset(MessageType[name] for name in ("PAUSE", "SERVE", "STAGE", "WRITE", "COMPARE", "DROP", "AGREE"))


class MovedError(StateError):
    """The module has a parameter in other memory, or in another form, than the receiver writes."""


class Rank:
    """The states of raas_receiver/engine/ranks/FORMAT.md, "A commit", and what messages do to them:

        reading --PAUSE--> paused --WRITE--> written, a mix or a version --SERVE--> reading

    Threads: any, one at a time. A caller of a method below "under the lock" holds ``lock`` from before it decides to
    call until the call is done.

    Args:
        gate: shut while the memory must not be read.
        receiver: what errors call the receiver.
        compares: other code writes the memory, and it is only compared.
        after_write: as Follower's.
        agreement: with the ranks of other hosts; None: there are none.

    Attributes:
        holds: the version that the whole memory is known to be; None: none, or a mix. No other version is served,
            whatever a receiver says. It is forgotten before the first byte is written, and set by the last WRITE.
        reads: what may be read; None: the rank waits.
        asleep: the memory is not there, or other code writes it.
        pauses: the last 1024, in seconds: from when readers had left after a PAUSE until they may read again.
    """

    def __init__(
        self,
        memory: Memory,
        gate: Gate,
        *,
        receiver: str,
        compares: bool,
        after_write: "Callable[[Served], Any] | None",
        agreement: "Agreement | None" = None,
    ) -> None:
        self.lock = threading.Lock()
        self.compares = compares
        self.holds: "Served | None" = None
        self.reads: "Served | None" = None
        self.asleep = False
        self.pauses: "collections.deque[float]" = collections.deque(maxlen=_KEPT_PAUSES)
        self.take(memory)
        self._gate = gate
        self._receiver = receiver
        self._after_write = after_write
        self._agreement = agreement
        self._at_sleep: "Served | None" = None  # what it held when it fell asleep
        self._resumes: "Served | None" = None  # what was read before PAUSE, while nothing was written since
        self._known: "list[Served]" = []  # announced by the last PAUSE, and read last: with their labels
        self._derived: "Served | None" = None  # what after_write was last done for
        self._waits_since = time.monotonic()
        self._paused_since: "float | None" = None  # its readers gone
        self._broken: "str | None" = None  # of after_write
        self._late: "str | None" = None  # of readers that did not leave
        self._look_at = 0.0  # no earlier the next COMPARE looks where parameters are: that costs it 5 % at most

    def error(self) -> "str | None":
        """What this rank itself is the reason of: ``after_write`` failed, or readers did not leave."""
        return self._broken or self._late

    def long_wait(self) -> "str | None":
        """That it has waited for long to be told what to serve."""
        seconds = time.monotonic() - self._waits_since
        if self.compares or self.reads is not None or self.asleep or seconds < _LONG_WAIT_SECONDS:
            return None
        holds = "no whole version" if self.holds is None else f"version {self.holds.version}"
        return (
            f"this rank has waited for {seconds:.0f} s to be told by {self._receiver} what to serve; it holds {holds}"
        )

    # --- under the lock ---

    def take(self, memory: Memory) -> None:
        """What is written and compared from here on."""
        self._memory = memory
        self._writer = Writer(memory.places)

    def moved(self) -> "str | None":
        """What became of a parameter that is not where it was; None: all are. Where one moved, this rank holds nothing any
        more, and no new reader comes in. The next PAUSE waits for those inside."""
        moved = self._memory.moved()
        if moved is not None:
            if self.reads is not None:
                self._waits_since = time.monotonic()
            self.holds = self.reads = self._resumes = self._derived = None
            with contextlib.suppress(StateError):
                self._gate.shut(given_up=lambda: True)
            self._lose()
        return moved

    def state(self) -> str:
        """As ATTACH says it."""
        if self.asleep:
            return "asleep"
        if self.compares:
            return "comparing"
        return "waiting" if self.reads is None else "reading"

    def sleep(self, kept: bool, given_up: "Callable[[], bool]") -> bool:
        """The memory goes, once readers have left; ``kept``: to come back as it is. False: it was asleep already. StateError:
        the gate was closed, or the caller has ``given_up``. UnavailableError: other hosts cannot be told that."""
        begins = not self.asleep
        if begins:
            self._lose()
            self._gate.shut(given_up)
            self.asleep = True
            self._at_sleep, self.holds = self.holds, None
            self.reads = self._resumes = self._derived = self._late = None
        if not kept:
            self._at_sleep = None
        return begins

    def wake(self) -> bool:
        """The memory is back. False: it was never away."""
        if not self.asleep:
            return False
        self.asleep = False
        self.holds = self._at_sleep
        self._waits_since = time.monotonic()
        return True

    def obey(self, order: Message, given_up: "Callable[[], bool]") -> "Message | None":
        """Does what the receiver says, once this rank is attached, and gives the answer, if it has one. ``given_up``: whether
        the receiver still waits for readers to leave. After an exception the memory may be a mix, which ``holds`` says.

        Raises:
            ProtocolError: it cannot be done; the text says what is wrong and where.
            MovedError: a parameter moved, so what was to be written, compared or read is not what the module reads.
            UnavailableError: the receiver waits no longer for readers.
            InternalError: ``after_write`` failed.
        """
        if len(order.fds) != (order.type == MessageType.STAGE):
            for fd in order.fds:
                os.close(fd)
            raise ProtocolError(f"{order.type.name} came with {len(order.fds)} descriptors")
        if order.type == MessageType.STAGE:
            self._stage(order.fds[0])
            return Message(MessageType.STAGED)
        if order.type == MessageType.COMPARE:
            if time.monotonic() >= self._look_at:
                self._check_place()
            return Message(MessageType.COMPARED, body=bytes([self._writer.compare()]))
        if order.type == MessageType.DROP:
            self._writer.drop()
            return None
        if order.type == MessageType.WRITE:
            self._write(order.version)
            return Message(MessageType.WRITTEN)
        if order.version is None or self.compares or order.type not in ORDERS:
            raise ProtocolError(
                f"{self._receiver}: {order.type.name} came without a version, or to a rank that compares"
            )
        if order.type == MessageType.AGREE:
            return Message(MessageType.AGREED, body=bytes([self._agree(order.version, order.body)]))
        if order.type == MessageType.PAUSE:
            self._pause(replace(order.version, label=order.body.decode(errors="replace")), given_up)
            return Message(MessageType.PAUSED)
        self._serve(order.version)
        return Message(MessageType.SERVING)

    def release(self) -> None:
        """Gives back the memory of lists that were written: for when the engine goes on."""
        self._writer.release()

    def drop(self) -> None:
        """The connection has ended, and what it staged with it."""
        self._writer.drop()

    def leave(self) -> None:
        """The connection has ended on which the receiver told how far it has come. UnavailableError: other hosts cannot be
        told that."""
        if self._agreement is not None:
            self._agreement.leave()

    def resume(self) -> None:
        """What was not written since PAUSE may be read again, unless other hosts' ranks are being written already."""
        if self._resumes is not None and self.moved() is None and self._may_read(self._resumes):
            self._read(self._resumes)

    # --- what messages do ---

    def _stage(self, fd: int) -> None:
        try:
            self._writer.stage(fd)
        except torch.cuda.OutOfMemoryError as error:
            self._writer.drop()
            torch.cuda.empty_cache()  # the engine's own allocations may want it
            raise ProtocolError(
                f"no memory for what is to be written; leave more free, or lower --engine-stage-bytes: {error}"
            ) from error

    def _write(self, after: "Served | None") -> None:
        self._resumes = None
        if self.compares or self.reads is not None:
            raise ProtocolError("WRITE of memory that is being read")
        self.holds = None
        self._writer.write()
        self.holds = after

    def _pause(self, announced: Served, given_up: "Callable[[], bool]") -> None:
        """Nothing reads the memory from here on."""
        self._known = [announced, *self._known[-1:]]
        began = time.monotonic()
        if self.reads is not None:
            self._resumes, self.reads = self.reads, None
            self._waits_since = began
        try:
            self._gate.shut(given_up)
        except StateError as error:
            self._late = f"{self._receiver} paused this rank for {time.monotonic() - began:.1f} s, and {error}"
            raise UnavailableError(self._late) from error
        self._late = None
        self._memory.synchronize()
        self._check_place()
        self._paused_since = time.monotonic()

    def _serve(self, served: Served) -> None:
        if self.holds != served:
            raise ProtocolError(f"{self._receiver}: {served} cannot be served: {self.holds} is in memory")
        self._check_place()
        if self.reads is not None:
            return
        if not self._may_read(served):
            raise ProtocolError(f"{self._receiver}: {served} cannot be served: not all ranks of other hosts hold it")
        self._read(served)

    def _lose(self) -> None:
        if self._agreement is not None:
            self._agreement.lose()

    def _may_read(self, served: Served) -> bool:
        return self._agreement is None or self._agreement.may_read(served)

    def _agree(self, version: Served, body: bytes) -> int:
        if self._agreement is None or len(body) != 1 or body[0] > max(Step):
            raise ProtocolError(f"{self._receiver}: AGREE is no step, or came to a rank without other hosts")
        return self._agreement.ask(Step(body[0]), version)

    def _check_place(self) -> None:
        began = time.monotonic()
        moved = self.moved()
        ended = time.monotonic()
        self._look_at = ended + 20 * (ended - began)
        if moved is not None:
            raise MovedError(
                f"{moved}. What {self._receiver} writes is not what the module reads. This rank attaches again, as the module "
                "is now, and gets a whole version"
            )

    def _read(self, served: Served) -> None:
        """The module reads ``served`` from here on. After an exception the rank waits."""
        served = next((known for known in self._known if known == served), served)
        if served != self._derived:
            self._derive(served)
        self._known = [served]
        if self._paused_since is not None:
            self.pauses.append(time.monotonic() - self._paused_since)
        self.reads, self._resumes, self._paused_since = served, None, None
        self._gate.open(served)

    def _derive(self, served: Served) -> None:
        self._derived = None
        if self._after_write is not None:
            try:
                self._after_write(served)
                self._memory.synchronize()
            except Exception as error:
                self._broken = f"after_write failed for version {served.version}: {error!r}"
                raise InternalError(self._broken) from error
        self._broken = None
        self._derived = served
