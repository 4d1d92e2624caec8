"""Memory of a module's parameters that nobody but this process writes."""

from dataclasses import dataclass
from typing import Any, Sequence

import torch

from lockstep.core.errors import BadDataError
from lockstep.engine._aliases import aliases_of
from lockstep.engine._memory import Location, MadeMemory
from lockstep.engine._parameters import Parameter


@dataclass(frozen=True)
class Place:
    """Where a memory of the description lies in this process."""

    device: torch.device
    address: int
    size: int

    @property
    def end(self) -> int:
        return self.address + self.size


def _described(places: "Sequence[Place]") -> "list[dict[str, Any]]":
    return [{"kind": "own", "bytes": place.size} for place in places]


class InPlace:
    """The parameters' own memory, where it is: one half, a memory for each stretch that they lie in.

    Attributes:
        locations, descriptions, fds: as ``MadeMemory`` has them.
        places: of each half's memories.
    """

    def __init__(self, parameters: "Sequence[Parameter]") -> None:
        self._kept = [own.tensor.detach() for own in parameters]  # the memory stays, whatever becomes of the module
        self.fds: "list[int]" = []
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
        self.descriptions = [_described(self.places[0])]

    def switch(self, half: int) -> None:
        """There is one."""

    def close(self) -> None:
        """Memory lives as long as its tensors."""


def _where(own: Parameter) -> "tuple[str, int, int]":
    return str(own.tensor.device), own.address, -own.span_bytes


class Halves(MadeMemory):
    """Two memories that are made for the parameters; ``places`` as ``InPlace``."""

    def __init__(self, parameters: "Sequence[Parameter]", aliases: "Sequence[Parameter]") -> None:
        self.places: "list[list[Place]]" = []
        super().__init__(parameters, aliases, 2)

    def _make_half(self) -> torch.Tensor:
        half = torch.zeros(self._bytes, dtype=torch.uint8, device=self._moved[0].tensor.device)
        self.places.append([Place(half.device, half.data_ptr(), self._bytes)])
        self.descriptions.append(_described(self.places[-1]))
        return half


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
