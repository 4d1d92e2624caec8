"""Memory of a module's parameters that another process can write: memfds, or GPU memory by CUDA IPC."""

import contextlib
import fcntl
import mmap
import os
from typing import Any, Sequence, Tuple

import torch

from lockstep._errors import BadDataError, ResourceExhaustedError
from lockstep.engine._aliases import aliases_of
from lockstep.engine._parameters import Parameter

_ALIGN = 256
_KEPT = 16  # addresses keep their remainder by this, which covers every element's size
_PAGE_BYTES = 4096


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


class OwnMemory:
    """Memory that is made for the parameters: each half holds all of them, and they are moved into the first, with the
    ``aliases`` that lie in their memory.

    Attributes:
        places: (memory, byte offset) of each parameter, the same in both halves.
        descriptions: of each half, as in raas_receiver/placement/description/FORMAT.md.
        fds: one for each half of host memory.
    """

    def __init__(self, parameters: "Sequence[Parameter]", aliases: "Sequence[Parameter]", halves: int) -> None:
        self._moved = [*parameters, *aliases]
        self._offsets, self._bytes = packed(self._moved)
        self.places = [(0, offset) for offset in self._offsets[: len(parameters)]]
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


class HostMemory(OwnMemory):
    """A sealed memfd for each half."""

    def _make_half(self) -> torch.Tensor:
        fd = os.memfd_create("lockstep-engine", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.fds.append(fd)
        try:
            os.posix_fallocate(fd, 0, self._bytes)  # no memory is an error here, not a SIGBUS later
        except OSError as error:
            raise ResourceExhaustedError(f"{self._bytes} bytes of shared memory for parameters: {error}") from error
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.descriptions.append([{"kind": "host", "bytes": self._bytes}])
        return torch.frombuffer(mmap.mmap(fd, self._bytes), dtype=torch.uint8)


class CudaMemory(OwnMemory):
    """An allocation of its own on the GPU for each half."""

    def _make_half(self) -> torch.Tensor:
        half = torch.empty(self._bytes, dtype=torch.uint8, device=self._moved[0].tensor.device)
        device, handle, base = _exported(half.untyped_storage())
        self.descriptions.append([_cuda_description(device, handle, base, self._bytes)])
        return half


class CudaExport:
    """The parameters' own GPU memory, where it is; CUDA graphs that captured its addresses stay valid.

    ``places``, ``descriptions`` and ``fds`` as OwnMemory.
    """

    def __init__(self, parameters: "Sequence[Parameter]") -> None:
        self.fds: "list[int]" = []
        storages: "dict[int, Tuple[int, bytes, int]]" = {}
        found = []  # device and handle of each parameter's allocation, and its offset there
        for parameter in parameters:
            storage = parameter.tensor.untyped_storage()
            if storage.data_ptr() not in storages:
                storages[storage.data_ptr()] = _exported(storage, parameter.name)
            device, handle, base = storages[storage.data_ptr()]
            found.append(((device, handle), base + parameter.address - storage.data_ptr()))
        self.places, memories = _in_allocations(found, [parameter.span_bytes for parameter in parameters])
        self.descriptions = [[_cuda_description(*allocation, *extent) for allocation, extent in memories]]

    def switch(self, half: int) -> None:
        """There is one."""

    def close(self) -> None:
        """PyTorch keeps what was exported until the process ends."""


def _in_allocations(
    found: "Sequence[Tuple[Tuple[int, bytes], int]]", sizes: "Sequence[int]"
) -> "Tuple[list[Tuple[int, int]], list[Tuple[Tuple[int, bytes], Tuple[int, int]]]]":
    """One memory for each allocation, from its first parameter's begin to its last one's end.

    Answers each parameter's (memory, offset) and each memory's (allocation, (offset, bytes)).
    """
    extents: "dict[Tuple[int, bytes], Tuple[int, int]]" = {}
    for (allocation, offset), size in zip(found, sizes):
        begin, end = extents.get(allocation, (offset, offset))
        extents[allocation] = min(begin, offset), max(end, offset + size)
    numbers = {allocation: number for number, allocation in enumerate(extents)}
    places = [(numbers[allocation], offset - extents[allocation][0]) for allocation, offset in found]
    return places, [(allocation, (begin, end - begin)) for allocation, (begin, end) in extents.items()]


def _exported(storage: Any, name: str = "") -> "Tuple[int, bytes, int]":
    """(device index, IPC handle of the storage's allocation, the storage's byte offset in it)."""
    try:
        device, handle, _, offset, *_ = storage._share_cuda_()
    except RuntimeError as error:
        raise BadDataError(
            f'parameter "{name}": its GPU memory cannot be shared ({error}). CUDA shares what cudaMalloc gave: start '
            "the engine without expandable_segments, sleep mode and memory savers, or take versions from the directory"
        ) from error
    return device, ipc_handle(bytes(handle), name), offset


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


def _cuda_description(device: int, handle: bytes, offset: int, size: int) -> "dict[str, Any]":
    return {
        "kind": "cuda",
        "bytes": size,
        "device": f"GPU-{torch.cuda.get_device_properties(device).uuid}",
        "handle": handle.hex(),
        "offset": offset,
    }


def lend(module: Any, parameters: "Sequence[Parameter]", double_buffered: bool) -> Any:
    """The memory that the parameters lie in afterwards. BadDataError: they lie where nobody else can write, or what shares
    their memory cannot go with them."""
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
def on_device(parameters: "Sequence[Parameter]") -> "Any":
    """Runs the body with the parameters' first GPU as the thread's current one."""
    device = parameters[0].tensor.device
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        yield
