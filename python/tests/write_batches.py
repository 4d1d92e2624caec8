"""Write batches as a receiver makes them (raas_receiver/engine/placement/writes/FORMAT.md)."""

import fcntl
import os
import struct
from typing import Sequence, Tuple

Run = Tuple[int, int, int, Sequence[int], bytes]  # memory, unit, base, offsets, values
Rows = Tuple[int, int, int, int, int]  # memory, offset, rows, row_bytes, pitch


def batch(
    runs: "Sequence[Run]" = (), copies: "Sequence[Tuple[Rows, bytes]]" = (), zeros: "Sequence[Rows]" = ()
) -> bytes:
    """Its bytes; runs come by falling unit whatever their order is here."""
    runs = sorted(runs, key=lambda run: -run[1])
    tables = b"".join(struct.pack("<IIQQ", memory, unit, base, len(offsets)) for memory, unit, base, offsets, _ in runs)
    for memory, *rows in [rows for rows, _ in copies] + list(zeros):
        tables += struct.pack("<IIQQQQ", memory, 0, *rows)
    body = bytearray(64) + tables
    for _, _, _, offsets, _ in runs:
        body += struct.pack(f"<{len(offsets)}I", *offsets)
    _align(body)
    for run in runs:
        body += run[4]
    for _, data in copies:
        _align(body)
        body += data
    _align(body)
    body[:36] = struct.pack("<8sHHIQIII", b"LSWRITE1", 1, 64, 0, len(body), len(runs), len(copies), len(zeros))
    return bytes(body)


def _align(body: bytearray) -> None:
    body += bytes(-len(body) % 8)


def sealed(content: bytes, seals: int = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW) -> int:
    """A memfd of it."""
    fd = os.memfd_create("write batch", os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd
