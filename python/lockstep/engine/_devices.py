"""What a writer asks of the device that memory lies on: its bytes as a tensor, uploads, and when it has done what."""

import contextlib
import ctypes
import mmap
from typing import Any, Iterator

import torch

from lockstep.core.gpu_memory import GpuMemory


class Cpu:
    """The CPU."""

    def threads(self) -> int:
        """How many may write at a time."""
        return int(torch.get_num_threads())

    def memory(self, begin: int, size: int) -> torch.Tensor:
        """The bytes from address ``begin`` on, in place; only those that are there may be used."""
        return torch.frombuffer((ctypes.c_char * size).from_address(begin), dtype=torch.uint8)

    def uploaded(self, content: mmap.mmap) -> torch.Tensor:
        """A tensor of these bytes on the device. REQUIRES ``working``; ``content`` stays while the tensor does."""
        return torch.frombuffer(content, dtype=torch.uint8)

    def warm(self) -> None:
        """Has what a write runs loaded, for the first one is in a pause."""

    def settle(self) -> None:
        """Waits until the device has done all work that it was given so far."""

    @contextlib.contextmanager
    def working(self) -> "Iterator[None]":
        """All that is started inside is done when it is left."""
        yield


class Gpu(Cpu):
    """A GPU. Work runs in a stream of its own, which waits for no other stream, and for which no other stream waits."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)

    def threads(self) -> int:
        """One gives the GPU its work."""
        return 1

    def memory(self, begin: int, size: int) -> torch.Tensor:
        """As of the CPU. The memory may be of any kind that the GPU reaches at this address."""
        return torch.as_tensor(GpuMemory(begin, size), device=self._device)

    def uploaded(self, content: mmap.mmap) -> torch.Tensor:
        """As of the CPU, on the GPU once ``working`` is left."""
        return super().uploaded(content).pin_memory().to(self._device, non_blocking=True)

    def warm(self) -> None:
        """As of the CPU: a kernel's first start takes milliseconds."""
        with self.working():
            for dtype in (torch.uint8, torch.int16, torch.int32, torch.int64):
                some = torch.zeros(1, dtype=dtype, device=self._device)
                some.scatter_(0, torch.zeros(1, dtype=torch.int64, device=self._device), some.clone())

    def settle(self) -> None:
        """As of the CPU: on all streams."""
        torch.cuda.synchronize(self._device)

    @contextlib.contextmanager
    def working(self) -> "Iterator[None]":
        """As of the CPU, also when it is left by an exception."""
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            self._stream.synchronize()


def device_of(device: torch.device) -> Cpu:
    """The device that PyTorch calls so."""
    return Gpu(device) if device.type == "cuda" else Cpu()
