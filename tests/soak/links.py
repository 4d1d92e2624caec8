"""A link between a receiver and its agent that breaks, one way or both, and comes back (faults.py breaks it)."""

import contextlib
import random
import socket
import threading

from proxy import CHUNK, RST_ON_CLOSE, Proxy

UP, DOWN = "up", "down"  # from the receiver to the agent, and back


class Link(Proxy):
    """Listens on `host`:`port`. While a way is held nothing gets through on it, and what was sent waits; heal() lets it
    on or, torn, ends all connections, as a router does that has forgotten them."""

    def __init__(self, upstream: str, host: str, port: int = 0) -> None:
        self.open = {UP: threading.Event(), DOWN: threading.Event()}
        self.heal()
        super().__init__(upstream, (host, port))

    def heal(self, torn: bool = False) -> None:
        self.refuses = False
        self.damage = 0  # so many pieces more come down with a wrong bit
        if torn:
            self.tear()
        for way in self.open.values():
            way.set()

    def tear(self) -> None:
        for connection in self._connections:
            connection.stop(torn=True)

    # Faults answer what ends them.

    def held(self, ways: "tuple[str, ...]", torn: bool):
        for way in ways:
            self.open[way].clear()
        return lambda: self.heal(torn)

    def refused(self):
        """Ends all connections, and every new one."""
        self.refuses = True
        self.tear()
        return self.heal

    def damaged(self):
        self.damage = 3
        return self.heal

    def _serve(self, client: socket.socket) -> None:
        self._connections = [connection for connection in self._connections if connection.ways]
        if self.refuses:
            client.close()
        else:
            super()._serve(client)

    def _connection(self, client: socket.socket, upstream: socket.socket) -> "_Connection":
        return _Connection(self, client, upstream)


class _Connection:
    """A thread for each way; `ways` are those that are not over."""

    def __init__(self, link: Link, client: socket.socket, upstream: socket.socket) -> None:
        self._link = link
        self.ways = {UP: (client, upstream), DOWN: (upstream, client)}
        self._ends = (client, upstream)

    def run(self) -> None:
        up = threading.Thread(target=self._pass_on, args=(UP,), daemon=True)
        up.start()
        self._pass_on(DOWN)
        up.join()
        for end in self._ends:
            end.close()

    def stop(self, torn: bool = False) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                if torn:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST_ON_CLOSE)
                end.shutdown(socket.SHUT_RDWR)

    def _pass_on(self, way: str) -> None:
        source, sink = self.ways[way]
        with contextlib.suppress(OSError):
            while piece := source.recv(CHUNK):
                self._link.open[way].wait()
                if way == DOWN and self._link.damage > 0:
                    self._link.damage -= 1
                    at = random.randrange(len(piece))
                    piece = piece[:at] + bytes([piece[at] ^ 0x10]) + piece[at + 1 :]
                sink.sendall(piece)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        del self.ways[way]
