"""Ports that a test keeps to itself."""

import socket


class ReservedPort:
    """A loopback port on which a daemon may listen, be killed and listen again; no other process gets it meanwhile.

    The socket here is bound and never listens. The system gives a bound port neither to programs that ask for any free one
    nor to outgoing connections; and a server that sets SO_REUSEADDR, as all of ours do, may listen on it all the same.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]
        self.address = f"127.0.0.1:{self.number}"

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "ReservedPort":
        return self

    def __exit__(self, *exception) -> None:
        self.close()
