"""What a receiver has a rank write into its own memory (raas_receiver/targets/FORMAT.md): the messages' effect."""

import os
from typing import Sequence

import torch

from lockstep.core.errors import ProtocolError
from lockstep.engine._connection import Message, MessageType
from lockstep.engine._memory import Place
from lockstep.engine._served import Served
from lockstep.engine._writer import Writer

ORDERS = frozenset((MessageType.STAGE, MessageType.WRITE, MessageType.COMPARE, MessageType.DROP))


class OwnWrites:
    """Stages, writes and compares in each half. One thread.

    Attributes:
        holds: the version that each half is known to be, wholly; None: none, or a mix. Whatever the receiver says, no
            other is served.
    """

    def __init__(self, halves: "Sequence[Sequence[Place]]") -> None:
        self._writers = [Writer(places) for places in halves]
        self.holds: "list[Served | None]" = [None] * len(halves)

    def obey(self, order: Message, read: "int | None") -> "Message | None":
        """Does it and gives the answer, if it has one. ``read``: the half that may be read now. After an exception the
        half may hold a mix, which ``holds`` says.

        Raises:
            ProtocolError: it cannot be done; the text says what is wrong and where.
        """
        if len(order.fds) != (order.type == MessageType.STAGE):
            for fd in order.fds:
                os.close(fd)
            raise ProtocolError(f"{order.type.name} came with {len(order.fds)} descriptors")
        if order.type == MessageType.DROP:
            self.drop()
            return None
        if order.half >= len(self._writers):
            for fd in order.fds:
                os.close(fd)
            raise ProtocolError(f"{order.type.name} is of half {order.half}, and there is none")
        writer = self._writers[order.half]
        if order.type == MessageType.STAGE:
            self._stage(writer, order.fds[0])
            return Message(MessageType.STAGED)
        if order.type == MessageType.COMPARE:
            return Message(MessageType.COMPARED, body=bytes([writer.compare()]))
        if order.half == read:
            raise ProtocolError(f"WRITE is of half {order.half}, which is being read")
        self.holds[order.half] = None
        writer.write()
        self.holds[order.half] = order.version
        return Message(MessageType.WRITTEN)

    def _stage(self, writer: Writer, fd: int) -> None:
        try:
            writer.stage(fd)
        except torch.cuda.OutOfMemoryError as error:
            self.drop()
            torch.cuda.empty_cache()  # the engine's own allocations may want it
            raise ProtocolError(
                f"no memory for what is to be written; leave more free, or lower --engine-stage-bytes: {error}"
            ) from error

    def has(self, served: Served, half: int) -> bool:
        """Whether a half is known to be that version."""
        return half < len(self.holds) and self.holds[half] == served

    def tidy(self) -> None:
        """Gives back the memory of lists that were written: for when the engine goes on."""
        for writer in self._writers:
            writer.tidy()

    def drop(self) -> None:
        """Forgets what is staged."""
        for writer in self._writers:
            writer.drop()
