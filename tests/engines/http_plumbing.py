"""HTTP for the conformance servers: requests, answers, and answers that go wrong."""

import json
import socket
import struct
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from engine_core import Died


@dataclass
class Request:
    method: str
    path: str
    query: str
    headers: dict
    body: bytes

    def json(self):
        return json.loads(self.body or b"{}")

    def values(self, defaults: dict) -> dict:
        """The query's and the body's by name. ValueError: the body is no JSON object."""
        query = {name: _value(text) for name, text in parse_qsl(self.query)}
        return {**defaults, **query, **self.json()}


def _value(text: str):
    try:
        return json.loads(text)
    except ValueError:
        return text


@dataclass
class Answer:
    status: int
    content: object  # text as it is, anything else as JSON

    def encoded(self) -> "tuple[str, bytes]":
        if isinstance(self.content, str):
            return "text/plain; charset=utf-8", self.content.encode()
        return "application/json", json.dumps(self.content).encode()


def bearer(request: Request) -> str:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key if scheme.lower() == "bearer" else ""


@dataclass
class Fault:
    """What goes wrong at an endpoint: the first `skip` calls are spared, then `times` calls have it.

    kinds: "status" (`status` and `body` instead of the answer), "garbage" (200, no JSON), "truncated" (the connection
    ends within the answer), "reset", "hang" (no answer), "slow" (after `delay_s`); "partial" (a load that fails
    half-way), "partial_unsaid" (one that ends there, and says nothing of it). With `effect` the call is carried out
    all the same.
    """

    endpoint: str
    kind: str
    times: int = 1
    skip: int = 0
    effect: bool = False
    status: int = 500
    body: object = "Internal Server Error"
    delay_s: float = 1.0


class Handler(BaseHTTPRequestHandler):
    """Asks the server's `handle` for (Answer, Fault or None)."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:  # the name is the library's
        self.serve()

    do_POST = do_PUT = do_DELETE = do_GET

    def serve(self) -> None:
        target = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        request = Request(self.command, target.path, target.query, headers, body)
        self.close_connection = True
        try:
            answer, fault = self.server.handle_request_of_engine(request)
        except Died:
            self.reset()
            return
        if fault is not None and fault.kind == "reset":
            self.reset()
        elif fault is not None and fault.kind == "hang":
            self.server.ended.wait()
        else:
            self.reply(answer, cut=fault is not None and fault.kind == "truncated")

    def reply(self, answer: Answer, cut: bool) -> None:
        content_type, body = answer.encoded()
        self.send_response(answer.status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body) + (100 if cut else 0)))
        self.end_headers()
        self.wfile.write(body)

    def reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, *_) -> None:
        """Requests are in the server's log."""


class HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, handle) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.handle_request_of_engine = handle
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def handle_error(self, request, client_address) -> None:
        """Clients that go away are part of the tests."""

    def close(self) -> None:
        """No request is answered any more; later connections are refused."""
        self.ended.set()
        self.shutdown()
        self.server_close()
