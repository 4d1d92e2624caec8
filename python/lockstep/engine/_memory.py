"""Memory of a module's parameters that another process can write: memfds, or GPU memory by CUDA IPC."""

import contextlib
import os
from dataclasses import dataclass
from typing import Any, Iterator, Sequence, Tuple

import torch

from lockstep.core.errors import BadDataError
from lockstep.core.shared_memory import sealed_memory
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
class Allocation:
    """What ``cudaMalloc`` gave, as another process opens it: its GPU's number here, and its IPC handle."""

    device: int
    handle: bytes

    def description(self, offset: int, size: int) -> "dict[str, Any]":
        """Of ``size`` bytes from ``offset`` on."""
        return {
            "kind": "cuda",
            "bytes": size,
            "device": f"GPU-{torch.cuda.get_device_properties(self.device).uuid}",
            "handle": self.handle.hex(),
            "offset": offset,
        }


@dataclass(frozen=True)
class InAllocation:
    """A place in an allocation."""

    allocation: Allocation
    offset: int


@dataclass
class _Extent:
    """The part of an allocation that parameters lie in."""

    begin: int
    end: int


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


class MadeMemory:
    """Memory that is made for the parameters: each half holds all of them, and they are moved into the first, with the
    ``aliases`` that lie in their memory.

    Attributes:
        locations: of each parameter, the same in both halves.
        descriptions: of each half, as in raas_receiver/placement/description/FORMAT.md.
        fds: one for each half of host memory.
    """

    def __init__(self, parameters: "Sequence[Parameter]", aliases: "Sequence[Parameter]", halves: int) -> None:
        self._moved = [*parameters, *aliases]
        self._offsets, self._bytes = packed(self._moved)
        self.locations = [Location(0, offset) for offset in self._offsets[: len(parameters)]]
        self.fds: "list[int]" = []
        self.descriptions: "list[list[dict[str, Any]]]" = []
        try:
            self._halves = [self._make_half() for _ in range(halves)]
            self._views = [[self._view(half, k) for k in range(len(self._moved))] for half in self._halves]
        except BaseException:
            self.close()
            raise
        for parameter, view in zip(self._moved, self._views[0]):
            view.copy_(parameter.tensor.detach())
            parameter.tensor.data = view
        for half in self._halves[1:]:
            half.copy_(self._halves[0])

    def switch(self, half: int) -> None:
        """The module reads ``half`` from here on. Nothing may read it meanwhile."""
        for parameter, view in zip(self._moved, self._views[half]):
            parameter.tensor.data = view

    def close(self) -> None:
        """The descriptors; memory lives as long as its tensors."""
        while self.fds:
            os.close(self.fds.pop())

    def _make_half(self) -> torch.Tensor:
        raise NotImplementedError

    def _view(self, half: torch.Tensor, index: int) -> torch.Tensor:
        parameter, offset = self._moved[index], self._offsets[index]
        if parameter.span_bytes == 0:
            return parameter.tensor.data
        elements = half[offset : offset + parameter.span_bytes].view(parameter.tensor.dtype)
        return elements.as_strided(parameter.shape, parameter.strides)


class HostMemory(MadeMemory):
    """A sealed memfd for each half."""

    def _make_half(self) -> torch.Tensor:
        fd, memory = sealed_memory("lockstep-engine", self._bytes, "parameters")
        self.fds.append(fd)
        self.descriptions.append([{"kind": "host", "bytes": self._bytes}])
        return torch.frombuffer(memory, dtype=torch.uint8)


class CudaMemory(MadeMemory):
    """An allocation of its own on the GPU for each half."""

    def _make_half(self) -> torch.Tensor:
        half = torch.empty(self._bytes, dtype=torch.uint8, device=self._moved[0].tensor.device)
        shared = _exported(half.untyped_storage())
        self.descriptions.append([shared.allocation.description(shared.offset, self._bytes)])
        return half


class CudaExport:
    """The parameters' own GPU memory, where it is; CUDA graphs that captured its addresses stay valid.

    ``locations``, ``descriptions`` and ``fds`` as MadeMemory.
    """

    def __init__(self, parameters: "Sequence[Parameter]") -> None:
        self.fds: "list[int]" = []
        storages: "dict[int, InAllocation]" = {}
        found = []
        for parameter in parameters:
            storage = parameter.tensor.untyped_storage()
            if storage.data_ptr() not in storages:
                storages[storage.data_ptr()] = _exported(storage, parameter.name)
            base = storages[storage.data_ptr()]
            found.append(InAllocation(base.allocation, base.offset + parameter.address - storage.data_ptr()))
        self.locations, memories = _memories_of(found, [parameter.span_bytes for parameter in parameters])
        self.descriptions = [memories]

    def switch(self, half: int) -> None:
        """There is one."""

    def close(self) -> None:
        """PyTorch keeps what was exported until the process ends."""


def _memories_of(
    found: "Sequence[InAllocation]", sizes: "Sequence[int]"
) -> "Tuple[list[Location], list[dict[str, Any]]]":
    """Each parameter's location, and each memory's description: one memory for each allocation, from its first
    parameter's begin to its last one's end."""
    extents: "dict[Allocation, _Extent]" = {}
    for own, size in zip(found, sizes):
        extent = extents.setdefault(own.allocation, _Extent(own.offset, own.offset))
        extent.begin, extent.end = min(extent.begin, own.offset), max(extent.end, own.offset + size)
    numbers = {allocation: number for number, allocation in enumerate(extents)}
    locations = [Location(numbers[own.allocation], own.offset - extents[own.allocation].begin) for own in found]
    memories = [own.description(extent.begin, extent.end - extent.begin) for own, extent in extents.items()]
    return locations, memories


def _exported(storage: Any, name: str = "") -> InAllocation:
    """Where the storage begins in its allocation, which is shared from here on."""
    try:
        device, handle, _, offset, *_ = storage._share_cuda_()
    except RuntimeError as error:
        raise BadDataError(
            f'parameter "{name}": its GPU memory cannot be shared ({error}). CUDA shares what cudaMalloc gave: start '
            "the engine without expandable_segments, sleep mode and memory savers, or take versions from the directory"
        ) from error
    return InAllocation(Allocation(device, ipc_handle(bytes(handle), name)), offset)


def ipc_handle(raw: bytes, name: str) -> bytes:
    """The 64 bytes of cudaIpcMemHandle_t in what PyTorch answers: these alone, or behind a version and a kind."""
    if len(raw) == 64:
        return raw
    if len(raw) == 66 and raw[1:2] == b"c":
        return raw[2:]
    if raw[1:2] == b"e":
        raise BadDataError(
            f'parameter "{name}": its GPU memory is an expandable segment, which CUDA IPC cannot share; start the '
            "engine without expandable_segments in PYTORCH_CUDA_ALLOC_CONF"
        )
    raise BadDataError(
        f'parameter "{name}": PyTorch {torch.__version__} gives an IPC handle of unknown form {raw[:2]!r}'
    )


def lend(module: Any, parameters: "Sequence[Parameter]", double_buffered: bool) -> Any:
    """The memory that the parameters lie in afterwards. BadDataError: they lie where no other process can write, or
    what shares their memory cannot move with them."""
    kinds = {parameter.tensor.device.type for parameter in parameters}
    if kinds == {"cpu"}:
        return HostMemory(parameters, aliases_of(module, parameters), 2 if double_buffered else 1)
    devices = {parameter.tensor.device for parameter in parameters}
    if kinds != {"cuda"}:
        raise BadDataError(f"parameters on {', '.join(sorted(map(str, devices)))}: they must be on the CPU or on GPUs")
    if not double_buffered:
        return CudaExport(parameters)
    if len(devices) > 1:
        raise BadDataError("parameters on several GPUs cannot be double-buffered")
    return CudaMemory(parameters, aliases_of(module, parameters), 2)


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
