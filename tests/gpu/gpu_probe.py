"""What this machine's GPU and its bus give: facts, and rates in GB/s that the figures are held against.

The rates are printed for a reader of the log; each figure measures its own ceiling again, beside itself.
"""

import ctypes
import json
import os
import platform
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any, Callable

import torch

DEVICE = os.environ.get("LOCKSTEP_GPU_DEVICE", "cuda")
BYTES = 1 << 30
REPEATS = 5
ROW_BYTES = (64, 256, 1024)  # below 256 the exporter packs rows on the GPU first


def seconds(copy: "Callable[[], object]", repeats: int = REPEATS, warm: bool = True) -> float:
    """The median of what one call takes, to the end of its work on the GPU; `warm`: after a first one, not counted."""
    taken = []
    for _ in range(repeats + warm):
        torch.cuda.synchronize()
        began = time.perf_counter()
        copy()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[warm:])


def pinned(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


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
    if int(status) != 0:
        raise RuntimeError(f"cudaHostRegister: {status}")
    runtime.cudaHostUnregister(memory.data_ptr())
    return size / taken / 1e9


def rows_gbps(row_bytes: int, size: int = BYTES // 16) -> float:
    """Of one copy of rows, twice as far apart on the GPU, to pinned memory side by side. OSError: PyTorch's CUDA runtime is
    in none of its libraries by that name."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    names = [line.split()[-1] for line in maps if "libcudart" in line]
    if not names:
        raise OSError("no libcudart is loaded")
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
        if status != 0:
            raise OSError(f"cudaMemcpy2DAsync: {status}")

    return size / seconds(start) / 1e9


def driver() -> str:
    """Its release, by nvidia-smi or the kernel; "" when neither says."""
    try:
        asked = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
        )
        if asked.returncode == 0 and asked.stdout.strip():
            return asked.stdout.split()[0]
    except (OSError, subprocess.TimeoutExpired):
        pass
    version = Path("/proc/driver/nvidia/version")
    words = version.read_text().split() if version.exists() else []
    return next((word for word in words if word[:1].isdigit() and "." in word), "")


def say(kind: str, **what: Any) -> None:
    print(f"@{kind} {json.dumps(what)}", flush=True)


def main() -> None:
    properties = torch.cuda.get_device_properties(0)
    say(
        "fact",
        device=properties.name,
        driver=driver() or f"of CUDA {torch.version.cuda}, its release unknown",
        devices=torch.cuda.device_count(),
        torch=torch.__version__,
        capability=f"{properties.major}.{properties.minor}",
        device_bytes=properties.total_memory,
        kernel=platform.release(),
    )
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
        say("figure", name=name, value=BYTES / seconds(copy) / 1e9, unit="GB/s")
    say("figure", name="cudaHostRegister", value=register_gbps(), unit="GB/s")
    try:
        for row_bytes in ROW_BYTES:
            say("figure", name=f"d2h_rows_of_{row_bytes}", value=rows_gbps(row_bytes), unit="GB/s")
    except OSError as error:  # the other rates count all the same
        print(f"rows: {error}")


if __name__ == "__main__":
    main()
