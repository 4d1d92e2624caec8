"""What this machine's GPU and its bus give, in GB/s, for a reader of the record. Each figure of test_gpu_figures.py measures
its own ceiling again, beside itself."""

import ctypes
import statistics
import time
from pathlib import Path
from typing import Callable

import pytest
import torch
from gpu_models import DEVICE, ON_GPU, gpu_only, synchronize

BYTES = 1 << 30
REPEATS = 5
ROW_BYTES = (64, 256, 1024)  # below 256 the exporter packs rows on the GPU first


def seconds(copy: "Callable[[], object]", repeats: int = REPEATS, warm: bool = True) -> float:
    """The median of what one call takes, to the end of its work on the GPU; `warm`: after a first one, not counted."""
    taken = []
    for _ in range(repeats + warm):
        synchronize()
        began = time.perf_counter()
        copy()
        synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[warm:])


def pinned(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=ON_GPU)


class PinnedCopy:
    """Of `size` bytes into pinned memory of that size: what no publish can beat."""

    def __init__(self, size: int) -> None:
        self._device, self._host = torch.empty(size, dtype=torch.uint8, device=DEVICE), pinned(size)
        self.seconds()

    def seconds(self) -> float:
        return seconds(lambda: self._host.copy_(self._device, non_blocking=True), repeats=1, warm=False)


def register_gbps(size: int = BYTES) -> float:
    """Of cudaHostRegister, over memory that has its pages."""
    memory = torch.zeros(size, dtype=torch.uint8)
    runtime = torch.cuda.cudart()
    began = time.perf_counter()
    status = runtime.cudaHostRegister(memory.data_ptr(), size, 0)
    taken = time.perf_counter() - began
    assert int(status) == 0, f"cudaHostRegister: {status}"
    runtime.cudaHostUnregister(memory.data_ptr())
    return size / taken / 1e9


def rows_gbps(row_bytes: int, size: int = BYTES // 16) -> float:
    """Of one copy of rows, twice as far apart on the GPU, to pinned memory side by side."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    names = [line.split()[-1] for line in maps if "libcudart" in line]
    if not names:
        pytest.skip("PyTorch's CUDA runtime is in no library of that name")
    copy = ctypes.CDLL(names[0]).cudaMemcpy2DAsync
    word, count = ctypes.c_void_p, ctypes.c_size_t
    copy.argtypes = (word, count, word, count, count, count, ctypes.c_int, word)
    device, host = torch.empty(2 * size, dtype=torch.uint8, device=DEVICE), pinned(size)
    to_host = 2

    def start() -> None:
        status = copy(
            host.data_ptr(),
            row_bytes,
            device.data_ptr(),
            2 * row_bytes,
            row_bytes,
            size // row_bytes,
            to_host,
            torch.cuda.current_stream().cuda_stream,
        )
        assert status == 0, f"cudaMemcpy2DAsync: {status}"

    return size / seconds(start) / 1e9


@gpu_only
def test_the_bus_and_the_memory_of_the_gpu_copy(figure):
    device, other = (torch.empty(BYTES, dtype=torch.uint8, device=DEVICE) for _ in range(2))
    fast, plain = pinned(BYTES), torch.zeros(BYTES, dtype=torch.uint8)
    copies = {
        "d2h_pinned": lambda: fast.copy_(device, non_blocking=True),
        "h2d_pinned": lambda: device.copy_(fast, non_blocking=True),
        "d2h_pageable": lambda: plain.copy_(device),
        "h2d_pageable": lambda: device.copy_(plain),
        "d2d": lambda: other.copy_(device),
    }
    for name, copy in copies.items():
        figure(name, BYTES / seconds(copy) / 1e9, "GB/s")
    figure("cudaHostRegister", register_gbps(), "GB/s")


@gpu_only
def test_rows_are_copied_to_the_host(figure):
    for row_bytes in ROW_BYTES:
        figure(f"d2h_rows_of_{row_bytes}", rows_gbps(row_bytes), "GB/s")
