"""Memory of a module's parameters. Only this process writes it."""

import contextlib
from dataclasses import dataclass
from typing import Iterator, Sequence

import torch

from lockstep.core.errors import BadDataError
from lockstep.engine._parameters import Parameter


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


class Memory:
    """The parameters' own memory, where it is: one for each stretch that they lie in.

    Attributes:
        locations: of each parameter.
        places: of each memory.

    Raises:
        BadDataError: parameters lie in memory that this process cannot write.
    """

    def __init__(self, parameters: "Sequence[Parameter]") -> None:
        devices = {own.tensor.device for own in parameters}
        if not {device.type for device in devices} <= {"cpu", "cuda"}:
            raise BadDataError(
                f"parameters on {', '.join(sorted(map(str, devices)))}: they must be on the CPU or on GPUs"
            )
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
        self.places = places or [Place(torch.device("cpu"), 0, 1)]

    def synchronize(self) -> None:
        """Waits until the parameters' GPUs have done all that was given to them."""
        for device in {tensor.device for tensor in self._kept}:
            if device.type == "cuda":
                torch.cuda.synchronize(device)

    @contextlib.contextmanager
    def on_device(self) -> "Iterator[None]":
        """Runs the body with the first parameter's GPU as the thread's current one."""
        device = self._kept[0].device
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            yield


def _where(own: Parameter) -> "tuple[str, int, int]":
    return str(own.tensor.device), own.address, -own.span_bytes
