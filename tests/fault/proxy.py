"""A TCP proxy that does to connections what bad networks do, the same for the same seed.

Each connection draws one fault from `faults`; what the upstream sends is damaged, the other way is left alone:

    clean       passes everything on
    split       passes it on in pieces of a few bytes to a few kilobytes
    stall       stops for a while, several times
    reset       ends both sides with RST after some bytes
    corrupt     flips one bit after some bytes
    half_close  says FIN to the client after some bytes, and leaves the rest hanging
    truncate    closes after some bytes

Two more happen only where they are asked for by name, for they keep a peer from coming to an end soon:

    slow        passes on twenty megabytes a second
    hang        passes nothing on after some bytes, and says nothing

A connection that is torn gets farther the more of them there were, so that a peer that resumes comes to an end.
"""

import contextlib
import random
import select
import socket
import struct
import threading
import time

FAULTS = ("clean", "split", "stall", "reset", "corrupt", "half_close", "truncate")
CHUNK = 64 * 1024
SLOW_BYTES_PER_SECOND = 20_000_000
RST_ON_CLOSE = struct.pack("ii", 1, 0)


class FaultProxy:
    """Listens on `address` and forwards to `upstream`, both "host:port", until closed. `seen` counts the faults."""

    def __init__(self, upstream: str, seed: int, faults=FAULTS, reach_bytes: int = 512 * 1024) -> None:
        host, _, port = upstream.rpartition(":")
        self.upstream = (host, int(port))
        self.faults = faults
        self.reach_bytes = reach_bytes
        self.seen: "dict[str, int]" = {}
        self._random = random.Random(seed)
        self._connections: "list[_Connection]" = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        fault = self._random.choice(self.faults)
        self.seen[fault] = self.seen.get(fault, 0) + 1
        reach = self._random.randrange(self.reach_bytes * (1 + sum(self.seen.values()) // 4))
        try:
            upstream = socket.create_connection(self.upstream, timeout=10)
        except OSError:
            client.close()
            return
        upstream.settimeout(None)
        connection = _Connection(client, upstream, fault, reach, self._random.random())
        self._connections.append(connection)
        threading.Thread(target=connection.run, daemon=True).start()

    def close(self) -> None:
        _shut(self._listener, socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            connection.stop()

    def __enter__(self) -> "FaultProxy":
        return self

    def __exit__(self, *exception) -> None:
        self.close()


class _Connection:
    """One client, its upstream, and the fault between them. One thread serves it, so that closing is at once."""

    def __init__(self, client: socket.socket, upstream: socket.socket, fault: str, reach: int, seed: float) -> None:
        self.client = client
        self.upstream = upstream
        self.fault = fault
        self.before_strike = reach
        self.random = random.Random(seed)

    def run(self) -> None:
        ways = {self.client: self._pass_request, self.upstream: self._pass_answer}
        with contextlib.suppress(OSError), self.client, self.upstream:
            while ways:
                for source in select.select(list(ways), [], [])[0]:
                    if not ways[source](source.recv(CHUNK)):
                        del ways[source]

    def stop(self) -> None:
        _shut(self.client, socket.SHUT_RDWR)
        _shut(self.upstream, socket.SHUT_RDWR)

    def _pass_request(self, piece: bytes) -> bool:
        """What the client said goes on undamaged; so does its end."""
        if piece:
            self.upstream.sendall(piece)
        else:
            _shut(self.upstream, socket.SHUT_WR)
        return bool(piece)

    def _pass_answer(self, piece: bytes) -> bool:
        """False when this way is over."""
        if not piece:
            _shut(self.client, socket.SHUT_WR)
            return False
        if self.fault == "split":
            self._send_split(piece)
        elif self.fault == "slow":
            time.sleep(len(piece) / SLOW_BYTES_PER_SECOND)
            self.client.sendall(piece)
        elif self.fault == "stall":
            time.sleep(self.random.choice((0, 0, 0, 0.05)))
            self.client.sendall(piece)
        elif self.fault == "clean" or len(piece) <= self.before_strike:
            self.client.sendall(piece)
            self.before_strike -= len(piece)
        else:
            return self._strike(piece)
        return True

    def _send_split(self, piece: bytes) -> None:
        while piece:
            size = self.random.choice((1, 7, 71, 500, 4000, 30_000))
            self.client.sendall(piece[:size])
            piece = piece[size:]

    def _strike(self, piece: bytes) -> bool:
        """The faults that happen once. False when this way is over."""
        before, after = piece[: self.before_strike], piece[self.before_strike :]
        fault, self.fault = self.fault, "clean"
        self.client.sendall(before)
        if fault == "corrupt":
            self.client.sendall(bytes([after[0] ^ 0x10]) + after[1:])
            return True
        if fault == "half_close":
            _shut(self.client, socket.SHUT_WR)
        if fault in ("half_close", "hang"):
            return False
        if fault == "reset":
            for end in (self.client, self.upstream):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST_ON_CLOSE)
        raise ConnectionAbortedError(fault)


def _shut(end: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(how)
