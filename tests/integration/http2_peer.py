"""Http2Peer: a peer that says what HTTP/2 allows, and no client of gRPC would."""

import itertools
import socket
import ssl
import struct

HEADERS, RST_STREAM, SETTINGS, PING = 1, 3, 4, 6
END_HEADERS = 4
CANCEL = struct.pack(">I", 8)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def call_headers(path: str) -> bytes:
    """The header block of a call of gRPC, each field as a literal (RFC 7541)."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(b"\0" + bytes([len(k)]) + k.encode() + bytes([len(v)]) + v.encode() for k, v in fields.items())


class Http2Peer:
    """A connection to ``address``, by TLS with the files of ``credentials`` ("tls_cert", "tls_key", "tls_ca")."""

    def __init__(self, address: str, credentials: "dict[str, object] | None" = None) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        if credentials:
            context = ssl.create_default_context(cafile=str(credentials["tls_ca"]))
            context.load_cert_chain(str(credentials["tls_cert"]), str(credentials["tls_key"]))
            context.set_alpn_protocols(["h2"])
            context.check_hostname = False
            self._socket = context.wrap_socket(self._socket)
        self._streams = itertools.count(1, 2)
        self.say(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))

    def __enter__(self) -> "Http2Peer":
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()

    def say(self, said: bytes) -> None:
        self._socket.sendall(said)

    def reset_streams(self, count: int, path: str) -> None:
        """Begins calls, and resets each at once."""
        headers = call_headers(path)
        streams = list(itertools.islice(self._streams, count))
        for start in range(0, count, 256):
            self.say(
                b"".join(
                    frame(HEADERS, END_HEADERS, stream, headers) + frame(RST_STREAM, 0, stream, CANCEL)
                    for stream in streams[start : start + 256]
                )
            )

    def is_closed(self) -> bool:
        """Waits until the other end closes, or answers a PING."""
        try:
            self.say(frame(PING, 0, 0, b"lockstep"))
            while received := self._socket.recv(1 << 16):
                if b"lockstep" in received:
                    return False
        except OSError:
            return True
        return True
