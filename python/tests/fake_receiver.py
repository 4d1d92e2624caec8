"""The receiver's side of the rank protocol (raas_receiver/engine/ranks/FORMAT.md), driven by hand, step by step."""

import hashlib
import json
import os
import socket
import struct
from pathlib import Path

import torch
from write_batches import batch, sealed

RUN = "0123456789abcdef" * 2
_HEADER = struct.Struct("<4sHHI4x16sQ")
(
    ATTACH,
    ATTACHED,
    REFUSED,
    PAUSE,
    PAUSED,
    SERVE,
    SERVING,
    STAGE,
    STAGED,
    WRITE,
    WRITTEN,
    COMPARE,
    COMPARED,
    DROP,
    ASK,
    LAYOUT,
) = range(1, 17)
_FORMAT = 5
_TIMEOUT_S = 60


class _Rank:
    """One connection of a rank that has sent a first message."""

    def __init__(self, connection: socket.socket, first: int) -> None:
        self.connection = connection
        kind, self.run, self.version, body = self._receive()
        assert kind == first
        self.said = json.loads(body)

    def refuse(self, why: str) -> None:
        self._send(REFUSED, body=why.encode())
        self.close()

    def is_closed(self) -> bool:
        """Waits for the rank to end the connection; False when it sends something."""
        try:
            return self.connection.recv(1, socket.MSG_PEEK) == b""
        except ConnectionResetError:  # it had not read all
            return True

    def close(self) -> None:
        self.connection.close()

    def _send(self, kind: int, version: int = 0, body: bytes = b"", fds: "tuple | list" = ()) -> None:
        run = bytes.fromhex(RUN) if version else bytes(16)
        message = _HEADER.pack(b"LSER", _FORMAT, kind, len(body), run, version) + body
        sent = socket.send_fds(self.connection, [message], list(fds))
        if sent < len(message):
            self.connection.sendall(message[sent:])

    def _receive(self) -> "tuple[int, str, int, bytes]":
        header, fds, _, _ = socket.recv_fds(self.connection, _HEADER.size, 8)
        magic, version, kind, size, run, number = _HEADER.unpack(header)
        assert (magic, version) == (b"LSER", _FORMAT) and not fds
        body = bytearray()
        while len(body) < size:
            body += self.connection.recv(size - len(body))
        return kind, run.hex(), number, bytes(body)


class Question(_Rank):
    """A rank that asks for a layout."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection, ASK)

    def answer(self, body: bytes, kind: int = LAYOUT, fds: "tuple | list" = ()) -> None:
        self._send(kind, body=body, fds=fds)
        self.close()


class Attachment(_Rank):
    """A rank that attaches."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection, ATTACH)
        self.attach = self.said
        self.state = self.attach["state"]
        self.description = self.attach["description"]

    def attached(self) -> None:
        self._send(ATTACHED)

    def send_pause(self, version: int, label: str = "") -> None:
        self._send(PAUSE, version=version, body=label.encode())

    def pause(self, version: int, label: str = "") -> None:
        self.send_pause(version, label)
        self.expect(PAUSED)

    def send_serve(self, version: int) -> None:
        self._send(SERVE, version=version)

    def serve(self, version: int) -> None:
        self.send_serve(version)
        self.expect(SERVING)

    def commit(self, version: int, value: float) -> None:
        """All of a commit: every parameter becomes ``value``."""
        self.pause(version)
        self.fill(value, version)
        self.serve(version)

    def fill(self, value: float, version: "int | None" = None, names: "list[str] | None" = None) -> None:
        """Writes one value into parameters, all or those of ``names``; ``version`` as ``put`` has it, ``value`` if it is
        not said."""
        filled = [own for own in self.description["parameters"] if names is None or own["name"] in names]
        tensors = {own["name"]: torch.full(own["shape"], value) for own in filled}
        self.put(tensors, int(value) if version is None else version)

    def put(self, tensors: "dict[str, torch.Tensor]", version: int) -> None:
        """Writes parameters; what the rank holds then is ``version``, 0 for no whole one."""
        written = [own for own in self.description["parameters"] if own["name"] in tensors]
        self.stage(batch(runs=[_run(own, tensors[own["name"]]) for own in written]))
        self.expect(STAGED)
        self.write(version)

    def stage(self, content: bytes) -> None:
        fd = sealed(content)
        self._send(STAGE, fds=[fd])
        os.close(fd)

    def send_write(self, version: int) -> None:
        self._send(WRITE, version=version)

    def write(self, version: int) -> None:
        """Has the rank write what is staged, after which it holds ``version``."""
        self.send_write(version)
        self.expect(WRITTEN)

    def send_compare(self) -> None:
        self._send(COMPARE)

    def compare(self) -> bytes:
        self.send_compare()
        kind, _, _, body = self._receive()
        assert kind == COMPARED
        return body

    def drop(self) -> None:
        self._send(DROP)

    def refusal(self) -> str:
        """Why the rank does not do what it was told; it ends the connection then."""
        kind, _, _, body = self._receive()
        assert kind == REFUSED and self.is_closed()
        return body.decode()

    def expect(self, kind: int) -> None:
        assert self._receive()[0] == kind

    def is_silent(self, seconds: float = 0.2) -> bool:
        """Whether the rank sends nothing for so long."""
        self.connection.settimeout(seconds)
        try:
            return self.connection.recv(1, socket.MSG_PEEK) is None
        except TimeoutError:
            return True
        finally:
            self.connection.settimeout(_TIMEOUT_S)


def _layout(parameter: dict) -> "tuple[torch.dtype, list[int], list[int]]":
    dtype = {"BF16": torch.bfloat16, "F32": torch.float32, "I64": torch.int64}[parameter["dtype"]]
    shape = parameter["shape"]
    return dtype, shape, parameter.get("strides") or list(torch.empty(shape, device="meta").stride())


def _run(parameter: dict, tensor: torch.Tensor) -> "tuple[int, int, int, list[int], bytes]":
    """All of a parameter, element by element."""
    dtype, shape, strides = _layout(parameter)
    offsets = torch.zeros(shape, dtype=torch.int64)
    for dim, (extent, stride) in enumerate(zip(shape, strides)):
        at = [1] * len(shape)
        at[dim] = extent
        offsets += (torch.arange(extent) * stride * dtype.itemsize).view(at)
    values = tensor.detach().to(dtype).contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return parameter.get("memory", 0), dtype.itemsize, parameter["offset"], offsets.flatten().tolist(), values


class FakeReceiver:
    """Listens at ``path``; a test takes its ranks and drives them.

    Attributes:
        layout: the model's tensors, name by name (dtype of safetensors, shape): what ranks that ask are told.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.layout: "dict[str, tuple[str, list[int]]]" = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.settimeout(_TIMEOUT_S)
        path.unlink(missing_ok=True)
        self._listener.bind(str(path))
        self._listener.listen()

    def accept(self) -> Attachment:
        connection = self._accept()
        if self.layout and _HEADER.unpack(connection.recv(_HEADER.size, socket.MSG_PEEK))[2] == ASK:
            self._tell(connection)
            connection = self._accept()
        return Attachment(connection)

    def tell_layout(self) -> None:
        """Answers a rank that asks."""
        self._tell(self._accept())

    def _tell(self, connection: socket.socket) -> None:
        digest = hashlib.md5(repr(self.layout).encode()).hexdigest()
        Question(connection).answer(json.dumps({"digest": digest, "tensors": self.layout}).encode())

    def accept_question(self) -> Question:
        return Question(self._accept())

    def _accept(self) -> socket.socket:
        connection, _ = self._listener.accept()
        connection.settimeout(_TIMEOUT_S)
        return connection

    def close(self) -> None:
        self._listener.close()
