"""The pipeline that delta_sync is measured against: what a plain Python program with NumPy does for a sparse sync.

The sender compares two slots in shared memory and sends absolute indices and raw values over TCP; the receiver, another
process, scatters them into its private copy, writes the whole safetensors file again in memory, and renames it. Every
stage is the quickest NumPy way found: compared in slices that stay in a cache, received in place, written by one call.

    message  <Q: changes; then all indices as u32, then all values as u16
    answer   <dd: seconds of the scatter and of the rewriting
"""

import json
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

HEADER = struct.Struct("<Q")
ANSWER = struct.Struct("<dd")
COMPARED_AT_ONCE = 1 << 18  # elements


def compare(old: np.ndarray, new: np.ndarray) -> "tuple[np.ndarray, np.ndarray]":
    """Indices and new values of the elements that differ between two flat arrays."""
    found = []
    for begin in range(0, new.size, COMPARED_AT_ONCE):
        part = slice(begin, begin + COMPARED_AT_ONCE)
        found.append(np.flatnonzero(old[part] != new[part]).astype(np.uint32) + np.uint32(begin))
    indices = np.concatenate(found)
    return indices, new[indices]


class NumpyPipeline:
    """The sender, and the process that receives. Close it, or use it in a with block."""

    def __init__(self, directory: Path, first: Path, elements: int) -> None:
        """`first`: a file with the version that the receiver starts from; `elements`: its length in 16-bit elements."""
        self.file = directory / "model.safetensors"
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            command = [sys.executable, __file__, str(port), str(first), str(elements), str(self.file)]
            self._process = subprocess.Popen(command)
            self._socket, _ = server.accept()
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.recv(1)  # it has its copy

    def __enter__(self) -> "NumpyPipeline":
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()
        if self._process.wait(60) != 0:
            raise SystemExit(f"the receiver of the NumPy pipeline ended with {self._process.returncode}")

    def sync(self, old: np.ndarray, new: np.ndarray) -> "dict[str, float]":
        """Brings the receiver from `old` to `new`. Returns the seconds of each stage, and of all as "total"."""
        begin = time.perf_counter()
        indices, values = compare(old, new)
        compared = time.perf_counter()
        self._socket.sendall(HEADER.pack(indices.size))
        self._socket.sendall(indices)
        self._socket.sendall(values)
        scatter, rewrite = ANSWER.unpack(self._socket.recv(ANSWER.size, socket.MSG_WAITALL))
        end = time.perf_counter()
        send = end - compared - scatter - rewrite
        return {"diff": compared - begin, "pull": send, "apply": scatter, "commit": rewrite, "total": end - begin}


def received(connection: socket.socket, count: int, kind: type) -> np.ndarray:
    """So many elements off the connection."""
    array = np.empty(count, kind)
    view = memoryview(array).cast("B")
    while view:
        got = connection.recv_into(view)
        if got == 0:
            raise SystemExit("the connection ended inside a message")
        view = view[got:]
    return array


def write_file(path: Path, elements: np.ndarray) -> None:
    """A whole new file next to the old one, which it then replaces."""
    tensor = {"dtype": "BF16", "shape": [elements.size], "data_offsets": [0, elements.nbytes]}
    header = json.dumps({"weights": tensor}).encode()
    header += b" " * (-len(header) % 8)
    new = path.with_suffix(".new")
    with open(new, "wb", buffering=0) as file:
        file.write(struct.pack("<Q", len(header)) + header)
        view = memoryview(elements).cast("B")
        while view:
            view = view[file.write(view) :]
    os.rename(new, path)


def receive(port: int, first: Path, elements: int, path: Path) -> None:
    """The receiving process: until the sender closes its connection."""
    private = np.fromfile(first, np.uint16, elements)
    write_file(path, private)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(b"\0")
        while header := connection.recv(HEADER.size, socket.MSG_WAITALL):
            (count,) = HEADER.unpack(header)
            indices = received(connection, count, np.uint32)
            values = received(connection, count, np.uint16)
            begin = time.perf_counter()
            private[indices] = values
            scattered = time.perf_counter()
            write_file(path, private)
            connection.sendall(ANSWER.pack(scattered - begin, time.perf_counter() - scattered))


if __name__ == "__main__":
    receive(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
