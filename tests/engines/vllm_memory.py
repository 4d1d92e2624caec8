"""Memory of a vLLM model that is not there while the server sleeps: a stand-in for vLLM's sleep backend, without a GPU.

As vLLM's allocator it keeps addresses, gives the pages back, and has them filled with the kept bytes, or with anything,
after the wake. Whatever reads or writes them meanwhile gets SIGSEGV.
"""

import ctypes
import mmap
from typing import Any

import torch

_ALIGNED = 64
_GARBAGE = 0xA5
_libc = ctypes.CDLL(None, use_errno=True)


class SleepingMemory:
    """All parameters of ``module``, moved into pages of their own."""

    def __init__(self, module: Any) -> None:
        parameters = list(dict(module.named_parameters()).values())
        sizes = [-(-parameter.nbytes // _ALIGNED) * _ALIGNED for parameter in parameters]
        self._pages = mmap.mmap(-1, max(sum(sizes), mmap.PAGESIZE))
        self._bytes = torch.frombuffer(self._pages, dtype=torch.uint8)
        self._kept: "torch.Tensor | None" = None
        offset = 0
        for parameter, size in zip(parameters, sizes):
            moved = self._bytes[offset : offset + parameter.nbytes].view(parameter.dtype).view(parameter.shape)
            moved.copy_(parameter.data)
            parameter.data = moved
            offset += size

    def suspend(self, level: int) -> None:
        """SleepModeBackend's: level 1 keeps what is there."""
        self._kept = self._bytes.clone() if level == 1 else None
        self.discard(("weights",))

    def discard(self, tags: "tuple[str, ...]") -> None:
        """SleepModeBackend's: nothing is kept."""
        if "weights" in tags:
            self._protect(0)

    def resume(self, tags: "list[str] | None") -> None:
        """SleepModeBackend's."""
        if tags is None or "weights" in tags:
            self._protect(mmap.PROT_READ | mmap.PROT_WRITE)
            self._bytes.fill_(_GARBAGE) if self._kept is None else self._bytes.copy_(self._kept)
            self._kept = None

    def _protect(self, protection: int) -> None:
        address = ctypes.c_void_p(self._bytes.data_ptr())
        if _libc.mprotect(address, ctypes.c_size_t(len(self._pages)), protection) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
