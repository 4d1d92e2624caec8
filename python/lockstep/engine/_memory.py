"""Memory of a module's parameters, which nobody but this process writes."""

import contextlib
from dataclasses import dataclass
from typing import Any, Iterator, Sequence, Tuple

import torch

from lockstep.core.errors import BadDataError
from lockstep.engine._aliases import aliases_of
from lockstep.engine._parameters import Parameter

_ALIGN = 256
_KEPT = 16  # addresses keep their remainder by this, which covers every element's size
_PAGE_BYTES = 4096


@dataclass(frozen=True)
class Location:
    """Where a parameter lies: the memory's number in the description, and the byte offset in it."""

    memory: int
    offset: int


@dataclass(frozen=True)
class Place:
    """Where a memory of the description lies in this process."""

    device: torch.device
    address: int
    size: int

    @property
    def end(self) -> int:
        return self.address + self.size


class InPlace:
    """The parameters' own memory, where it is: one half, a memory for each stretch that they lie in.

    Attributes:
        locations: of each parameter, the same in all halves.
        places: of each half's memories.
    """

    def __init__(self, parameters: "Sequence[Parameter]") -> None:
        self._kept = [own.tensor.detach() for own in parameters]  # the memory stays, whatever becomes of the module
        places: "list[Place]" = []
        self.locations = [Location(0, 0)] * len(parameters)
        for index in sorted(range(len(parameters)), key=lambda k: _where(parameters[k])):
            own = parameters[index]
            if own.span_bytes == 0:  # it lies nowhere
                continue
            if places and places[-1].device == own.tensor.device and own.address <= places[-1].end:
                end = max(places[-1].end, own.address + own.span_bytes)
                places[-1] = Place(places[-1].device, places[-1].address, end - places[-1].address)
            else:
                places.append(Place(own.tensor.device, own.address, own.span_bytes))
            self.locations[index] = Location(len(places) - 1, own.address - places[-1].address)
        self.places = [places or [Place(parameters[0].tensor.device, 0, 1)]]

    def switch(self, half: int) -> None:
        """There is one."""


def _where(own: Parameter) -> "tuple[str, int, int]":
    return str(own.tensor.device), own.address, -own.span_bytes


class Halves:
    """Two memories that are made for the parameters: each holds all of them, and they are moved into the first, with the
    ``aliases`` that lie in their memory. ``locations`` and ``places`` as ``InPlace``.
    """

    def __init__(self, parameters: "Sequence[Parameter]", aliases: "Sequence[Parameter]") -> None:
        self._moved = [*parameters, *aliases]
        self._offsets, size = packed(self._moved)
        self.locations = [Location(0, offset) for offset in self._offsets[: len(parameters)]]
        device = parameters[0].tensor.device
        self._halves = [torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2)]
        self.places = [[Place(device, half.data_ptr(), size)] for half in self._halves]
        self._views = [[self._view(half, k) for k in range(len(self._moved))] for half in self._halves]
        for parameter, view in zip(self._moved, self._views[0]):
            view.copy_(parameter.tensor.detach())
            parameter.tensor.data = view
        self._halves[1].copy_(self._halves[0])

    def switch(self, half: int) -> None:
        """The module reads ``half`` from here on. Nothing may read it meanwhile."""
        for parameter, view in zip(self._moved, self._views[half]):
            parameter.tensor.data = view

    def _view(self, half: torch.Tensor, index: int) -> torch.Tensor:
        parameter, offset = self._moved[index], self._offsets[index]
        if parameter.span_bytes == 0:
            return parameter.tensor.data
        elements = half[offset : offset + parameter.span_bytes].view(parameter.tensor.dtype)
        return elements.as_strided(parameter.shape, parameter.strides)


def keep(module: Any, parameters: "Sequence[Parameter]", double_buffered: bool) -> "InPlace | Halves":
    """The memory that the parameters lie in afterwards. BadDataError: they lie where nobody can write, or what shares
    their memory cannot move with them."""
    devices = {parameter.tensor.device for parameter in parameters}
    if not {device.type for device in devices} <= {"cpu", "cuda"}:
        raise BadDataError(f"parameters on {', '.join(sorted(map(str, devices)))}: they must be on the CPU or on GPUs")
    if not double_buffered:
        return InPlace(parameters)
    if len(devices) > 1:
        raise BadDataError("parameters on several devices cannot be double-buffered")
    return Halves(parameters, aliases_of(module, parameters))


def packed(parameters: "Sequence[Parameter]") -> "Tuple[list[int], int]":
    """Byte offsets at which copies of the parameters lie in one memory, and its size.

    Parameters that overlap (tied ones, views of one another) overlap there in the same way.
    """
    offsets = [0] * len(parameters)
    end = 0
    block_begin, block_end, block_offset = 0, -1, 0  # of what overlaps
    for index in sorted(range(len(parameters)), key=lambda k: (parameters[k].address, k)):
        parameter = parameters[index]
        begin = parameter.address - parameter.address % _KEPT
        if parameter.address == 0 or parameter.address >= block_end:
            block_begin, block_end = begin, parameter.address
            block_offset = -(-end // _ALIGN) * _ALIGN
        offsets[index] = block_offset + parameter.address - block_begin
        block_end = max(block_end, parameter.address + parameter.span_bytes)
        end = max(end, offsets[index] + parameter.span_bytes)
    return offsets, max(-(-end // _PAGE_BYTES), 1) * _PAGE_BYTES


def synchronize(parameters: "Sequence[Parameter]") -> None:
    """Waits until the parameters' GPUs have done all that was given to them."""
    for device in {parameter.tensor.device for parameter in parameters}:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


@contextlib.contextmanager
def on_device(parameters: "Sequence[Parameter]") -> "Iterator[None]":
    """Runs the body with the parameters' first GPU as the thread's current one."""
    device = parameters[0].tensor.device
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        yield
