"""What a full pull is compared with: bytes of a file in memory over loopback, from one process to another, by sendfile and
recv in a thread per connection. The receiver fills a warm mapping of its own and checks nothing.

    plain_stream.py FILE OFFSET BYTES CONNECTIONS    the sender, as often as it is connected to
"""

import mmap
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CALL_BYTES = 1 << 20


def on_each(connections: "list[socket.socket]", size: int, move: "Callable[[socket.socket, int, int], None]") -> None:
    """Moves an equal part of the bytes over each connection, all at once, and closes them."""
    ends = [size * number // len(connections) for number in range(len(connections) + 1)]
    with ThreadPoolExecutor(len(connections)) as pool:
        list(pool.map(move, connections, ends, ends[1:]))
    for connection in connections:
        connection.close()


class PlainStream:
    """The sending process, and memory that receives. Close it."""

    def __init__(self, file: Path, offset: int, size: int, connections: int) -> None:
        command = [sys.executable, __file__, str(file), str(offset), str(size), str(connections)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._address = "127.0.0.1", int(self._process.stdout.readline())
        self._connections = connections
        self._memory = mmap.mmap(-1, size)
        self.seconds()

    def seconds(self) -> float:
        """Of sending all of it once."""
        begin = time.perf_counter()
        connections = [socket.create_connection(self._address) for _ in range(self._connections)]
        on_each(connections, len(self._memory), self._receive)
        return time.perf_counter() - begin

    def _receive(self, connection: socket.socket, begin: int, end: int) -> None:
        view = memoryview(self._memory)
        while begin < end:
            got = connection.recv_into(view[begin : min(end, begin + CALL_BYTES)])
            if got == 0:
                raise ConnectionError("the sender ended")
            begin += got

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


def main(path: str, offset: str, size: str, connections: str) -> None:
    file = os.open(path, os.O_RDONLY)

    def send(connection: socket.socket, begin: int, end: int) -> None:
        begin, end = begin + int(offset), end + int(offset)
        while begin < end:
            begin += os.sendfile(connection.fileno(), file, begin, min(end - begin, CALL_BYTES))

    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            on_each([server.accept()[0] for _ in range(int(connections))], int(size), send)


if __name__ == "__main__":
    main(*sys.argv[1:])
