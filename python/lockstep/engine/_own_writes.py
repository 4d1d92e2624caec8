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
    """Stages, writes and compares. One thread.

    Attributes:
        holds: the version that the memory is known to be, wholly; None: none, or a mix. Whatever the receiver says, no
            other is served. It is forgotten before the first byte is written, and set by the last WRITE.
    """

    def __init__(self, places: "Sequence[Place]") -> None:
        self._writer = Writer(places)
        self.holds: "Served | None" = None

    def obey(self, order: Message, read: bool) -> "Message | None":
        """Does it and gives the answer, if it has one. ``read``: the memory may be read now. After an exception it may
        hold a mix, which ``holds`` says.

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
        if order.type == MessageType.STAGE:
            self._stage(order.fds[0])
            return Message(MessageType.STAGED)
        if order.type == MessageType.COMPARE:
            return Message(MessageType.COMPARED, body=bytes([self._writer.compare()]))
        if read:
            raise ProtocolError("WRITE of memory that is being read")
        self.holds = None
        self._writer.write()
        self.holds = order.version
        return Message(MessageType.WRITTEN)

    def _stage(self, fd: int) -> None:
        try:
            self._writer.stage(fd)
        except torch.cuda.OutOfMemoryError as error:
            self.drop()
            torch.cuda.empty_cache()  # the engine's own allocations may want it
            raise ProtocolError(
                f"no memory for what is to be written; leave more free, or lower --engine-stage-bytes: {error}"
            ) from error

    def tidy(self) -> None:
        """Gives back the memory of lists that were written: for when the engine goes on."""
        self._writer.tidy()

    def drop(self) -> None:
        """Forgets what is staged."""
        self._writer.drop()
