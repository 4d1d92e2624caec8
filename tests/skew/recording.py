"""What a release's processes said to each other, and what they left on disk, as files of a directory.

    rank.json     a trainer's rank and the agent, on the export socket
    engine.json   an engine's rank and the receiver, on the engine socket
    lanes.json    a receiver's lanes, each as all bytes that it sent and all that the agent sent
    agent.tar.gz, replica.tar.gz   the agent's segment directory, a receiver's root
    protos.txt    every field of the control plane: message, name, number, label, type

rank.json and engine.json list messages in the order in which they were sent: who sent it, its bytes, how many
descriptors came with it. The model is that of the FORMAT.md files' examples: "norm" of 2 float32 and "w" of 3 x 2 bfloat16.
"""

import contextlib
import json
import socket
import struct
import subprocess
import tarfile
import threading
from pathlib import Path
from typing import Any

import torch

SKEW = Path(__file__).resolve().parent
ROOT = SKEW.parents[1]
RELEASES = sorted(path for path in SKEW.iterdir() if path.is_dir() and path.name[0].isdigit())
MAX_FDS = 16
# Both protocols' headers begin with magic, format, type and the body's bytes.
START = struct.Struct("<4sHHI")


def tensors(version: int) -> "dict[str, torch.Tensor]":
    """The model at a version."""
    return {"norm": torch.ones(2), "w": torch.full((3, 2), version, dtype=torch.bfloat16)}


def read_message(connection: socket.socket, header_bytes: int) -> "tuple[bytes, list[int]]":
    """The next message, whole, and its descriptors; no bytes at the connection's end."""
    data, fds, _, _ = socket.recv_fds(connection, header_bytes, MAX_FDS)
    wanted = header_bytes
    while data and len(data) < wanted:
        more = connection.recv(wanted - len(data))
        if not more:
            return b"", fds
        data += more
        if len(data) == header_bytes:
            wanted += START.unpack_from(data)[3]
    if len(data) == header_bytes and START.unpack_from(data)[3]:
        return data + read_exactly(connection, START.unpack_from(data)[3]), fds
    return data, fds


def read_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        assert more, "the connection ended in the middle of a message"
        data += more
    return data


def field_table(protos: "list[Path]") -> "list[str]":
    """Every field of the messages in ``protos``, a line each, as protoc understands them."""
    described = subprocess.run(
        ["protoc", "-I.", "--descriptor_set_out=/dev/stdout", *protos], cwd=ROOT, check=True, capture_output=True
    ).stdout
    decode = [
        "protoc",
        "-I/usr/include",
        "--decode=google.protobuf.FileDescriptorSet",
        "google/protobuf/descriptor.proto",
    ]
    text = subprocess.run(decode, input=described, check=True, capture_output=True).stdout.decode()
    return sorted(_fields(text))


def _fields(text: str) -> "list[str]":
    """Of protoc's text form: blocks `NAME {`, lines `key: value`."""
    lines, path, fields = text.splitlines(), [], []
    for line in lines:
        key, _, value = line.strip().partition(": ")
        if line.endswith("{"):
            path.append({"block": line.strip()[:-2]})
        elif line.strip() == "}":
            block = path.pop()
            if block["block"] in ("field", "value", "method"):
                names = [outer["name"] for outer in path if "name" in outer]
                known = ("number", "label", "type", "type_name", "input_type", "output_type")
                fields.append(
                    " ".join([".".join([*names[1:], block["name"]]), *(block[k] for k in known if k in block)])
                )
        elif path:
            path[-1][key] = value.strip('"')
    return fields


class Relay:
    """A unix socket between a client and a server that notes every message, descriptors passed on."""

    def __init__(self, path: Path, server: Path, header_bytes: int, client_name: str, server_name: str) -> None:
        self.messages: "list[dict[str, Any]]" = []
        self._server, self._header_bytes = server, header_bytes
        self._names = client_name, server_name
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.connect(str(self._server))
        threading.Thread(target=self._pass_on, args=(client, server, self._names[0]), daemon=True).start()
        self._pass_on(server, client, self._names[1])

    def _pass_on(self, source: socket.socket, target: socket.socket, sender: str) -> None:
        while True:
            message, fds = read_message(source, self._header_bytes)
            if not message:
                return target.shutdown(socket.SHUT_WR)
            with self._lock:
                self.messages.append({"from": sender, "bytes": message.hex(), "descriptors": len(fds)})
            socket.send_fds(target, [message], fds)

    def save(self, path: Path) -> None:
        with self._lock:
            path.write_text(json.dumps(self.messages, indent=1) + "\n")


class LaneTap:
    """A TCP port in front of the agent's lanes that notes what passes."""

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.rpartition(":")
        self._upstream = (host, int(port))
        self._lanes: "list[dict[str, bytearray]]" = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(self._upstream)
            lane = {"receiver": bytearray(), "agent": bytearray()}
            self._lanes.append(lane)
            for source, target, sender in ((client, server, "receiver"), (server, client, "agent")):
                threading.Thread(target=self._pass_on, args=(source, target, lane[sender]), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, noted: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                noted += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def save(self, path: Path) -> None:
        lanes = [{sender: bytes(noted).hex() for sender, noted in lane.items()} for lane in self._lanes]
        path.write_text(json.dumps(lanes, indent=1) + "\n")


def pack(directory: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(directory, arcname=".")


def unpack(archive: Path, directory: Path) -> None:
    directory.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        tar.extractall(directory, filter="tar")
