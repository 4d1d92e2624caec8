"""The control page of a group of engine ranks (raas_receiver/targets/FORMAT.md), as a rank reads it."""

import enum
import mmap
import os
import struct
from dataclasses import dataclass
from typing import Tuple

from lockstep.core.errors import ProtocolError
from lockstep.engine._served import Served

_HEADER = struct.Struct("<8sHHI")
_MAGIC = b"LSENGPG1"
_FORMAT = 2
_PAGE_BYTES = 4096
_HEADER_BYTES = 128
_WORD_INDEX = 2  # in units of eight bytes
_SLOT = struct.Struct("<16sQ8x")
_SLOTS_OFFSET = 32


class EngineState(enum.IntEnum):
    EMPTY = 0
    SERVING = 1
    WRITING = 2


@dataclass(frozen=True)
class PageContent:
    """One reading of a control page: ``changes`` counts the word's changes; the version is the named slot's."""

    state: int
    changes: int
    version: "Served | None"


class ControlPage:
    """What all ranks of a group serve, as the receiver writes it. Takes ``fd`` over. ProtocolError: it is none."""

    def __init__(self, fd: int, world: int) -> None:
        try:
            if os.fstat(fd).st_size != _PAGE_BYTES:
                raise ProtocolError(f"the control page has {os.fstat(fd).st_size} bytes, not {_PAGE_BYTES}")
            self._map = mmap.mmap(fd, _PAGE_BYTES, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)
        if _HEADER.unpack_from(self._map) != (_MAGIC, _FORMAT, _HEADER_BYTES, world):
            raise ProtocolError(f"the control page is none of format {_FORMAT} for {world} ranks")
        # An item is read by one aligned load of eight bytes.
        self._words = memoryview(self._map).cast("Q")

    def read(self) -> PageContent:
        """The word and its slot. The receiver fills the other slot, so while the word stays this one is whole."""
        while True:
            word = self._words[_WORD_INDEX]
            run, number = self._slot(word >> 8 & 1)
            if self._words[_WORD_INDEX] == word:
                version = Served(run.hex(), number) if number else None
                return PageContent(word & 0xFF, word >> 16, version)

    def _slot(self, index: int) -> "Tuple[bytes, int]":
        return _SLOT.unpack_from(self._map, _SLOTS_OFFSET + index * _SLOT.size)
