"""Memory of a module's parameters. Only this process writes it."""

import bisect
import contextlib
from dataclasses import dataclass
from typing import Any, Dict, Iterator, Sequence, Set, Tuple

import torch

from lockstep.core.errors import BadDataError
from lockstep.engine._parameters import Parameter, memory_of


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
    """The memory of a module's parameters, where it is: one for each stretch that they lie in.

    Args:
        computed: of the module, what the receiver does not write and the rank computes.

    Attributes:
        locations: of each parameter.
        places: of each memory.

    Raises:
        BadDataError: parameters lie in memory that this process cannot write.
    """

    def __init__(
        self, module: torch.nn.Module, parameters: "Sequence[Parameter]", computed: "Sequence[torch.Tensor]" = ()
    ) -> None:
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
        self._children: "list[Tuple[str, Dict[str, Any], str, torch.nn.Module]]" = []
        self._tensors: "list[Tuple[str, Dict[str, Any], str, Any]]" = []
        self._note(module, set(map(memory_of, computed)))

    def moved(self) -> "str | None":
        """What became of the first tensor of the module that is not there any more, or not in the same form. None: all are as
        they were. Takes microseconds for each, in a pause."""
        for path, children, name, child in self._children:
            if children.get(name) is not child:
                return f'module "{path}" was replaced or removed'
        for path, holder, name, form in self._tensors:
            now = _form(holder.get(name))
            if now != form:
                return f'parameter "{path}" was {_text(form)}, and is {_text(now)}'
        return None

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

    def _note(self, module: torch.nn.Module, computed: "Set[int]") -> None:
        """Notes each tensor that lies here or is computed, under each name that it has, and the modules on the way."""
        begins = [(str(place.device), place.address) for place in self.places]
        seen = {id(module)}
        reached = [("", module)]
        for path, own in reached:
            for holder in (own._parameters, own._buffers, vars(own)):
                for name, tensor in holder.items():
                    form = _form(tensor)
                    if form is not None and (self._has(begins, form) or memory_of(tensor) in computed):
                        self._tensors.append((path + name, holder, name, form))
            for name, child in own._modules.items():
                if child is not None:
                    self._children.append((path + name, own._modules, name, child))
                    if id(child) not in seen:
                        seen.add(id(child))
                        reached.append((f"{path}{name}.", child))

    def _has(self, begins: "Sequence[Tuple[str, int]]", form: Any) -> bool:
        address, device = form[0], form[-1]
        index = bisect.bisect_right(begins, (str(device), address)) - 1
        return index >= 0 and self.places[index].device == device and address < self.places[index].end


def _form(tensor: Any) -> Any:
    """Where a tensor lies, and how. None: there is none, or it is of a kind that has no memory of its own."""
    if not isinstance(tensor, torch.Tensor):
        return None
    try:
        return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device
    except RuntimeError:
        return None


def _text(form: Any) -> str:
    if form is None:
        return "gone"
    address, dtype, shape, strides, device = form
    return f"{str(dtype).rpartition('.')[2]} {list(shape)} of strides {list(strides)} on {device} at {address:#x}"


def _where(own: Parameter) -> "tuple[str, int, int]":
    return str(own.tensor.device), own.address, -own.span_bytes
