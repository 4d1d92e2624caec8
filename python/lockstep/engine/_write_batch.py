"""A write batch of what a rank writes into its own memory (raas_receiver/engine/placement/writes/FORMAT.md), as it comes."""

import fcntl
import mmap
import os
import struct
from dataclasses import dataclass
from typing import Iterator, NamedTuple, Sequence

from lockstep.core.errors import ProtocolError

_HEADER = struct.Struct("<8sHHIQIII28s")
_RUN = struct.Struct("<IIQQ")
_ROWS = struct.Struct("<IIQQQQ")
_FIRST = (b"LSWRITE1", 1, _HEADER.size, 0)
_MAX_BYTES = 64 << 20
_OFFSET_BYTES = 4
_FINAL = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class Run(NamedTuple):
    """Changed units of one memory: unit i goes to byte ``base`` and its offset."""

    memory: int
    unit: int
    base: int
    units: int


class Rows(NamedTuple):
    """Rows of one memory, ``data`` bytes into the write batch; None: they become zeros."""

    memory: int
    offset: int
    rows: int
    row_bytes: int
    pitch: int
    data: "int | None"


@dataclass(frozen=True)
class WriteBatch:
    """A mapped write batch with checked tables: runs are ordered by falling unit, name only what the write batch has,
    and rows lie inside of their memories. It is not checked where units go: offsets are many.

    ``offsets`` and ``values``: where those of the first run begin.
    """

    content: mmap.mmap
    runs: "Sequence[Run]"
    rows: "Sequence[Rows]"
    offsets: int
    values: int


def open_batch(fd: int, sizes: "Sequence[int]") -> WriteBatch:
    """Takes ``fd`` over, a write batch for memories of these sizes. ProtocolError: it is none, and what is wrong where."""
    try:
        size = os.fstat(fd).st_size
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _FINAL != _FINAL:
            raise ProtocolError("a write batch is not sealed against changes")
        if not _HEADER.size <= size <= _MAX_BYTES:
            raise ProtocolError(
                f"a write batch has {size} bytes; it has at least {_HEADER.size} and at most {_MAX_BYTES}"
            )
        # Private, so that it can be a tensor's memory: nothing writes it.
        content = mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        raise ProtocolError(f"what came is no write batch: {error}") from error
    finally:
        os.close(fd)
    return _read(content, sizes)


def _read(content: mmap.mmap, sizes: "Sequence[int]") -> WriteBatch:
    *first, size, run_count, copy_count, zero_count, rest = _HEADER.unpack_from(content)
    if tuple(first) != _FIRST or any(rest) or size != len(content):
        raise ProtocolError(f"a write batch of {len(content)} bytes is none of format 1")
    copies_at = _HEADER.size + run_count * _RUN.size
    offsets = copies_at + (copy_count + zero_count) * _ROWS.size
    if offsets > size:
        raise ProtocolError(f"a write batch of {size} bytes has tables of {offsets}")
    runs = list(_checked_runs(content[_HEADER.size : copies_at], sizes))
    values = _aligned(offsets + _OFFSET_BYTES * sum(run.units for run in runs))
    at = _aligned(values + sum(run.units * run.unit for run in runs))
    rows = []
    tables = _ROWS.iter_unpack(content[copies_at:offsets])
    for index, (memory, reserved, offset, count, row_bytes, pitch) in enumerate(tables):
        is_copy = index < copy_count
        entry = Rows(memory, offset, count, row_bytes, pitch, at if is_copy else None)
        name = f"copy {index}" if is_copy else f"zero range {index - copy_count}"
        _check_rows(entry, reserved, name, sizes)
        rows.append(entry)
        at = _aligned(at + count * row_bytes) if is_copy else at
    if at != size:
        raise ProtocolError(f"a write batch of {size} bytes has tables for {at}")
    return WriteBatch(content, runs, rows, offsets, values)


def _aligned(at: int) -> int:
    return -(-at // 8) * 8


def _checked_runs(table: bytes, sizes: "Sequence[int]") -> "Iterator[Run]":
    widest = 8
    for index, fields in enumerate(_RUN.iter_unpack(table)):
        run = Run(*fields)
        _check_memory(run.memory, f"run {index}", sizes)
        if run.unit not in (1, 2, 4, 8) or run.unit > widest:
            raise ProtocolError(f"run {index} has units of {run.unit} bytes behind those of {widest}")
        if run.units > _MAX_BYTES or run.base > sizes[run.memory]:
            raise ProtocolError(
                f"run {index} has {run.units} units from byte {run.base} of memory {run.memory} on, "
                f"which has {sizes[run.memory]}"
            )
        widest = run.unit
        yield run


def _check_memory(memory: int, name: str, sizes: "Sequence[int]") -> None:
    if memory >= len(sizes):
        raise ProtocolError(f"{name} is of memory {memory}, and there are {len(sizes)}")


def _check_rows(entry: Rows, reserved: int, name: str, sizes: "Sequence[int]") -> None:
    _check_memory(entry.memory, name, sizes)
    apart = entry.pitch >= entry.row_bytes if entry.rows > 1 else entry.pitch == 0
    if reserved != 0 or entry.rows < 1 or entry.row_bytes < 1 or not apart:
        raise ProtocolError(
            f"{name} has {entry.rows} rows of {entry.row_bytes} bytes, {entry.pitch} apart, which cannot be"
        )
    end = entry.offset + (entry.rows - 1) * entry.pitch + entry.row_bytes
    if end > sizes[entry.memory]:
        raise ProtocolError(f"{name} ends at byte {end} of memory {entry.memory}, which has {sizes[entry.memory]}")
