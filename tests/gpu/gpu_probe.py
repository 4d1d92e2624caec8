"""What this machine's GPU and its bus give: facts, and rates in GB/s that the figures are held against.

The rates are printed for who reads the log; each figure measures its own ceiling again, beside itself.
"""

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


if __name__ == "__main__":
    main()
