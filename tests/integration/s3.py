"""Object stores for tests: moto's S3 as a process, and what may stand between a daemon and a store."""

import contextlib
import http.client
import json
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Callable

from ports import ReservedPort

BUCKET = "weights"


class S3:
    """A store that takes only what is signed with one of its keys, as botocore signs it (s3_server.py)."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.keys = directory / "keys.json"
        self.credentials = directory / "credentials"
        self.log = directory / "log"
        self._port = ReservedPort()
        self.address = self._port.address
        self.rotate("AKFIRST")
        self.start()

    def start(self) -> None:
        command = [sys.executable, Path(__file__).with_name("s3_server.py"), str(self._port.number), self.keys]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout.readline() == "ready\n", self.log.read_text()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def rotate(self, access: str, token: str = "", credentials: "str | None" = None) -> None:
        """From here on these keys are taken, and no others; the file that daemons read has them, or `credentials`."""
        self.keys.write_text(json.dumps({access: {"secret": f"secret-of-{access}", "token": token}}))
        self.write_credentials(credentials or self.text_of(access, token))

    def write_credentials(self, text: str) -> None:
        fresh = self.credentials.with_suffix(".new")
        fresh.touch(mode=0o600)
        fresh.write_text(text)
        fresh.replace(self.credentials)

    @staticmethod
    def text_of(access: str, token: str = "") -> str:
        lines = ["[default]", f"aws_access_key_id = {access}", f"aws_secret_access_key = secret-of-{access}"]
        return "\n".join(lines + ([f"aws_session_token = {token}"] if token else [])) + "\n"

    def url(self, prefix: str, address: "str | None" = None) -> str:
        return f"s3://{BUCKET}/{prefix}?endpoint=http://{address or self.address}&credentials={self.credentials}"

    def refusals(self) -> "list[str]":
        return [line for line in self.log.read_text().splitlines() if line.startswith("refused: ")]


@dataclass
class Message:
    """A request, and the answer that the store gave to it."""

    method: str
    path: str
    status: int
    headers: "list[tuple[str, str]]"
    body: bytes


# What becomes of an answer; None: the connection ends without one.
Fault = Callable[[Message], "Message | None"]


def status(code: int, error: str = "") -> Fault:
    body = f"<Error><Code>{error}</Code><Message>made up</Message></Error>".encode()
    return lambda message: Message(message.method, message.path, code, [], body if error else b"")


def corrupt(message: Message) -> Message:
    body = bytearray(message.body)
    if body:
        body[len(body) // 2] ^= 1
    return Message(message.method, message.path, message.status, message.headers, bytes(body))


def cut(message: Message) -> Message:
    """As long as it says it is, and half of it."""
    headers = [(name, value) for name, value in message.headers if name.lower() != "content-length"]
    headers.append(("Content-Length", str(len(message.body))))
    return Message(message.method, message.path, message.status, headers, message.body[: len(message.body) // 2])


def stall(seconds: float) -> Fault:
    def late(message: Message) -> Message:
        time.sleep(seconds)
        return message

    return late


def lost(_: Message) -> None:
    """The request was carried out, and the answer is lost."""


@dataclass
class Planned:
    pattern: "re.Pattern[str]"
    fault: Fault
    left: int = 1 << 30
    hits: int = 0


@dataclass
class FaultProxy:
    """A proxy before a store. It changes the answer to a request if a planned pattern is found in "METHOD PATH"."""

    upstream: str
    planned: "list[Planned]" = field(default_factory=list)
    requests: "list[tuple[str, str, int]]" = field(default_factory=list)  # method, path, bytes of both bodies
    down: bool = False

    def __post_init__(self) -> None:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with contextlib.suppress(ConnectionError, TimeoutError):
                    super().handle_one_request()

            def carry(self) -> None:
                proxy.carry(self)

            do_GET = do_PUT = do_DELETE = do_HEAD = carry

            def log_message(self, *_) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

        self._server = Server(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._lock = threading.Lock()
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def plan(self, pattern: str, fault: Fault, times: int = 1 << 30) -> Planned:
        planned = Planned(re.compile(pattern), fault, times)
        with self._lock:
            self.planned.append(planned)
        return planned

    def heal(self) -> None:
        with self._lock:
            self.planned.clear()

    def fault_of(self, request: str) -> "Fault | None":
        with self._lock:
            for planned in self.planned:
                if planned.left > 0 and planned.pattern.search(request):
                    planned.left -= 1
                    planned.hits += 1
                    return planned.fault
        return None

    def carry(self, handler: BaseHTTPRequestHandler) -> None:
        sent = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        if self.down:
            handler.close_connection = True
            return
        upstream = http.client.HTTPConnection(self.upstream, timeout=60)
        upstream.putrequest(handler.command, handler.path, skip_host=True, skip_accept_encoding=True)
        for name, value in handler.headers.items():
            if name.lower() not in ("expect", "connection"):
                upstream.putheader(name, value)
        upstream.endheaders(sent)
        answer = upstream.getresponse()
        message = Message(handler.command, handler.path, answer.status, answer.getheaders(), answer.read())
        upstream.close()
        with self._lock:
            self.requests.append((message.method, message.path, len(sent) + len(message.body)))
        fault = self.fault_of(f"{handler.command} {handler.path}")
        changed = fault(message) if fault else message
        if changed is None:
            handler.close_connection = True
            return
        handler.send_response(changed.status)
        skipped = ("transfer-encoding", "connection", "date", "server")
        said = {name.lower() for name, _ in changed.headers}
        for name, value in changed.headers:
            if name.lower() not in skipped:
                handler.send_header(name, value)
        if "content-length" not in said and changed.status not in (204, 304):
            handler.send_header("Content-Length", str(len(changed.body)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(changed.body)
        if len(changed.body) < int(dict((n.lower(), v) for n, v in changed.headers).get("content-length", 0)):
            handler.close_connection = True

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
