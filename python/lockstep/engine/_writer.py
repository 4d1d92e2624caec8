"""Writes write batches into memory of this process, on the device where it lies.

What can be done beforehand is: a write batch is checked, uploaded, and made into places and values, so that all that is left
is one ``scatter_`` for each write batch, width of units and device, and copies.
"""

import bisect
import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Iterator, NamedTuple, Sequence, Tuple

import torch

from lockstep.core.errors import ProtocolError
from lockstep.engine._devices import Cpu, device_of
from lockstep.engine._memory import Place
from lockstep.engine._write_batch import Rows, Run, WriteBatch, open_batch

_DTYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WIDEST = max(_DTYPES)
_AT_ONCE = 1 << 17  # units that one thread writes at a time
_LOW_32_BITS = 0xFFFFFFFF
# What may be staged: a place of four bytes and a value for each byte of the memories, and write batches that are whole versions'.
_STAGED_TO_MEMORY = 5
_STAGED_BESIDES = 256 << 20


class _Space:
    """The memories that lie on one device, and all that is between them, as one tensor of each width: what is
    between is not touched, as nothing is written that was not found to lie in its memory.

    Attributes:
        begin: its first byte's address.
        of_width: the tensors, by bytes of an element.
    """

    def __init__(self, device: Cpu, places: "Sequence[Place]") -> None:
        self.device = device
        self.begin = min(place.address for place in places) // _WIDEST * _WIDEST
        size = -(-(max(place.end for place in places) - self.begin) // _WIDEST) * _WIDEST
        flat = device.memory(self.begin, size)
        self.of_width = {width: flat.view(dtype) for width, dtype in _DTYPES.items()}

    def rows(self, at: int, entry: Rows, source: "torch.Tensor | None") -> "Tuple[torch.Tensor, torch.Tensor | None]":
        """The bytes at ``at`` that the entry names, and those of ``source`` that it brings, in elements as wide as both
        allow."""
        offset = at - self.begin
        width = next(
            width for width in sorted(_DTYPES, reverse=True) if not (offset | entry.row_bytes | entry.pitch) % width
        )
        shape = (entry.rows, entry.row_bytes // width)
        strides = ((entry.pitch or entry.row_bytes) // width, 1)
        target = self.of_width[width].as_strided(shape, strides, offset // width)
        if source is None or entry.data is None:
            return target, None
        data = source[entry.data : entry.data + entry.rows * entry.row_bytes]
        return target, data.view(_DTYPES[width]).view(shape)


class _Scatter(NamedTuple):
    target: torch.Tensor
    index: torch.Tensor
    values: torch.Tensor


@dataclass
class _Staged:
    """A write batch for one device, ready to be written. ``copies``: targets and what they get; None: zeros. On the CPU the
    tensors hold the write batch's mapping, which is their memory."""

    scatters: "list[_Scatter]" = field(default_factory=list)
    copies: "list[Tuple[torch.Tensor, torch.Tensor | None]]" = field(default_factory=list)


class Writer:
    """Writes into memories that lie at ``places``. One thread at a time.

    Raises:
        ProtocolError: a write batch is none, or leaves its memory; the text says what and where. Nothing of it is staged.
    """

    def __init__(self, places: "Sequence[Place]") -> None:
        self._places = places
        self._sizes = [place.size for place in places]
        devices = dict.fromkeys(place.device for place in places)
        with torch.inference_mode(False):  # tensors made in a caller's inference mode could not be written outside
            self._spaces = {
                device: _Space(device_of(device), [place for place in places if place.device == device])
                for device in devices
            }
            for space in self._spaces.values():
                space.device.warm()
        self._most_staged = _STAGED_TO_MEMORY * sum(self._sizes) + _STAGED_BESIDES
        self._staged_bytes = 0
        self._staged: "list[Tuple[_Space, _Staged]]" = []
        self._written: "list[Tuple[_Space, _Staged]]" = []

    def stage(self, fd: int) -> None:
        """Takes ``fd`` over: a write batch, to be written or compared with those that are staged already."""
        self.release()
        batch = open_batch(fd, self._sizes)
        if self._staged_bytes + len(batch.content) > self._most_staged:
            raise ProtocolError(
                f"{self._staged_bytes} bytes are staged already; {len(batch.content)} more exceed {self._most_staged}"
            )
        staged = []
        for device, space in self._spaces.items():
            with space.device.working():
                staged.append((space, self._prepared(batch, device, space)))
        self._staged += staged
        self._staged_bytes += len(batch.content)

    def write(self) -> None:
        """Writes what is staged, and waits until all is there. The lists take memory until ``release``: to give it back takes
        a third as long as to write."""
        self._written, self._staged, self._staged_bytes = self._staged, [], 0
        for space, batches in self._by_space(self._written):
            space.device.settle()  # no reader is left, but work that was begun may still be queued
            with space.device.working():
                for staged in batches:
                    self._write(space, staged)

    def compare(self) -> bool:
        """Whether all of what is staged is there already. ProtocolError: there are runs in it."""
        try:
            if any(staged.scatters for _, staged in self._staged):
                raise ProtocolError("a write batch to compare with has runs")
            differ = []
            for space, batches in self._by_space(self._staged):
                space.device.settle()
                with space.device.working():
                    for target, source in itertools.chain.from_iterable(staged.copies for staged in batches):
                        differ.append((target if source is None else target != source).any())
            return not any(bool(one) for one in differ)
        finally:
            self.drop()

    def drop(self) -> None:
        """Forgets what is staged."""
        self._staged, self._staged_bytes = [], 0
        self.release()

    def release(self) -> None:
        """Gives back the memory of what was written."""
        self._written = []

    def _by_space(self, batches: "Sequence[Tuple[_Space, _Staged]]") -> "Iterator[Tuple[_Space, list[_Staged]]]":
        for space in self._spaces.values():
            yield space, [staged for own, staged in batches if own is space]

    def _prepared(self, batch: WriteBatch, device: torch.device, space: _Space) -> _Staged:
        data = space.device.uploaded(batch.content)
        staged = _Staged()
        offset_at, value_at = batch.offsets, batch.values
        first = 0
        for (unit, own), group in itertools.groupby(
            batch.runs, lambda run: (run.unit, self._places[run.memory].device)
        ):
            runs = list(group)
            count = sum(run.units for run in runs)
            if own == device:
                offsets = data[offset_at : offset_at + 4 * count].view(torch.int32)
                values = data[value_at : value_at + unit * count].view(_DTYPES[unit])
                staged.scatters.append(self._scatter(space, runs, first, offsets, values))
            offset_at, value_at, first = offset_at + 4 * count, value_at + unit * count, first + len(runs)
        for entry in batch.rows:
            place = self._places[entry.memory]
            if place.device == device:
                staged.copies.append(space.rows(place.address + entry.offset, entry, data))
        return staged

    def _scatter(
        self, space: _Space, runs: "Sequence[Run]", first: int, offsets: torch.Tensor, values: torch.Tensor
    ) -> _Scatter:
        """Runs of one width, of which the first is number ``first`` of its write batch, as places of the space's tensor."""
        unit = runs[0].unit
        units = torch.tensor([run.units for run in runs], device=offsets.device)

        def of_units(each: "list[int]") -> torch.Tensor:
            """One number of each run, for each of its units; for all, where there is one run."""
            numbers = torch.tensor(each, device=offsets.device)
            return numbers.repeat_interleave(units, output_size=len(offsets)) if len(runs) > 1 else numbers

        index = offsets.to(torch.int64).bitwise_and_(_LOW_32_BITS)
        beyond = index > of_units([self._sizes[run.memory] - run.base - unit for run in runs])
        if bool(beyond.any()):
            raise ProtocolError(self._beyond(runs, first, index, int(beyond.nonzero()[0])))
        index += of_units([self._places[run.memory].address - space.begin + run.base for run in runs])
        if bool(index.bitwise_and(unit - 1).any()):  # a place that no element of this width has
            index = (index.unsqueeze(1) + torch.arange(unit, device=offsets.device)).view(-1)
            return _Scatter(space.of_width[1], index, values.view(torch.uint8))
        return _Scatter(space.of_width[unit], index.bitwise_right_shift_(unit.bit_length() - 1), values)

    def _beyond(self, runs: "Sequence[Run]", first: int, index: torch.Tensor, unit: int) -> str:
        """Which unit, of all runs', leaves its memory."""
        ends = list(itertools.accumulate(run.units for run in runs))
        number = bisect.bisect_right(ends, unit)
        run = runs[number]
        return (
            f"run {first + number} has {run.unit} bytes for byte {run.base + int(index[unit])} of memory {run.memory}, "
            f"which has {self._sizes[run.memory]}"
        )

    def _write(self, space: _Space, staged: _Staged) -> None:
        for scatter in staged.scatters:
            _run_scatter(scatter, space.device.threads())
        for target, source in staged.copies:
            target.zero_() if source is None else target.copy_(source)


def _run_scatter(scatter: _Scatter, threads: int) -> None:
    parts = -(-len(scatter.index) // _AT_ONCE)
    if min(threads, parts) <= 1:
        scatter.target.scatter_(0, scatter.index, scatter.values)
        return
    with ThreadPoolExecutor(min(threads, parts)) as pool:
        pieces = zip(scatter.index.split(_AT_ONCE), scatter.values.split(_AT_ONCE))
        list(pool.map(lambda piece: scatter.target.scatter_(0, *piece), pieces))
