"""TCP proxies that do to connections what bad networks do.

DelayProxy is a long link: what one side sends reaches the other so much later, both ways.

FaultProxy tears and damages, the same for the same seed. Each connection draws one fault from `faults`; what the upstream sends is damaged, the other way is left alone:

    clean       passes everything on
    split       passes it on in pieces of a few bytes to a few kilobytes
    stall       stops for a while, several times
    reset       ends both sides with RST after some bytes
    corrupt     flips one bit after some bytes
    half_close  says FIN to the client after some bytes, and leaves the rest hanging
    truncate    closes after some bytes

Two more happen only where they are asked for by name, for they keep a peer from coming to an end soon:

    gate        stops after some bytes until the proxy's `gate` is set, then passes everything on
    hang        passes nothing on after some bytes, and says nothing

A connection that is torn gets farther the more of them there were, so that a peer that resumes comes to an end.
"""

import contextlib
import queue
import random
import select
import socket
import struct
import threading
import time

FAULTS = ("clean", "split", "stall", "reset", "corrupt", "half_close", "truncate")
CHUNK = 64 * 1024
RST_ON_CLOSE = struct.pack("ii", 1, 0)


class Proxy:
    """Listens on `address` and forwards to `upstream`, both "host:port", until closed."""

    def __init__(self, upstream: str, listen: "tuple[str, int]" = ("127.0.0.1", 0)) -> None:
        host, _, port = upstream.rpartition(":")
        self.upstream = (host, int(port))
        self._connections: "list[_Connection | _LongConnection]" = []
        self._listener = socket.create_server(listen)
        self.address = "%s:%d" % self._listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def _connection(self, client: socket.socket, upstream: socket.socket):
        """What serves a new connection, with run() and stop()."""
        raise NotImplementedError

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        try:
            upstream = socket.create_connection(self.upstream, timeout=10)
        except OSError:
            client.close()
            return
        upstream.settimeout(None)
        connection = self._connection(client, upstream)
        self._connections.append(connection)
        threading.Thread(target=connection.run, daemon=True).start()

    def close(self) -> None:
        _shut(self._listener, socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            connection.stop()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *exception) -> None:
        self.close()


class FaultProxy(Proxy):
    """`seen` counts the faults."""

    def __init__(self, upstream: str, seed: int, faults=FAULTS, reach_bytes: int = 512 * 1024) -> None:
        self.faults = faults
        self.reach_bytes = reach_bytes
        self.seen: "dict[str, int]" = {}
        self.gate = threading.Event()
        self._random = random.Random(seed)
        super().__init__(upstream)

    def _connection(self, client: socket.socket, upstream: socket.socket) -> "_Connection":
        fault = self._random.choice(self.faults)
        self.seen[fault] = self.seen.get(fault, 0) + 1
        reach = self._random.randrange(self.reach_bytes * (1 + sum(self.seen.values()) // 4))
        return _Connection(client, upstream, fault, reach, self._random.random(), self.gate)

    def close(self) -> None:
        self.gate.set()
        super().close()


class DelayProxy(Proxy):
    """Passes everything on `delay_s` after it came."""

    def __init__(self, upstream: str, delay_s: float) -> None:
        self.delay_s = delay_s
        super().__init__(upstream)

    def _connection(self, client: socket.socket, upstream: socket.socket) -> "_LongConnection":
        return _LongConnection(client, upstream, self.delay_s)


class _LongConnection:
    """Two threads for each way: one receives at once, the other sends when it is time."""

    def __init__(self, client: socket.socket, upstream: socket.socket, delay_s: float) -> None:
        self._ends = (client, upstream)
        self._delay_s = delay_s

    def run(self) -> None:
        client, upstream = self._ends
        threading.Thread(target=self._pass_on, args=(upstream, client), daemon=True).start()
        self._pass_on(client, upstream)

    def stop(self) -> None:
        for end in self._ends:
            _shut(end, socket.SHUT_RDWR)

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        on_the_way: "queue.Queue[tuple[float, bytes]]" = queue.Queue()
        threading.Thread(target=self._deliver, args=(on_the_way, sink), daemon=True).start()
        piece = b"any"
        while piece:
            try:
                piece = source.recv(CHUNK)
            except OSError:
                piece = b""
            on_the_way.put((time.monotonic() + self._delay_s, piece))

    def _deliver(self, on_the_way: "queue.Queue[tuple[float, bytes]]", sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, piece = on_the_way.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not piece:
                    break
                sink.sendall(piece)
        _shut(sink, socket.SHUT_WR)


class _Connection:
    """One client, its upstream, and the fault between them. One thread serves it, so that closing is at once."""

    def __init__(
        self, client: socket.socket, upstream: socket.socket, fault: str, reach: int, seed: float, gate: threading.Event
    ) -> None:
        self.client = client
        self.upstream = upstream
        self.fault = fault
        self.before_strike = reach
        self.random = random.Random(seed)
        self.gate = gate

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
        """What the client sends is passed on undamaged; so is its end."""
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
        if fault == "gate":
            self.gate.wait()
            self.client.sendall(after)
            return True
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
