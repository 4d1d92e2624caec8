"""Two releases of different protocols: the one that notices refuses by a sentence with both releases, and says
which one to upgrade. Here with peers that no build speaks for; tests/release/test_upgrades.py has builds."""

import json
import socket
import struct
from pathlib import Path

from harness import ROOT

RELEASE = (ROOT / "VERSION").read_text().strip()
HELLO, ERROR = 11, 9  # of the rank protocol
REFUSED = 3  # of the engine ranks'
# Both protocols' headers begin with magic, format, type and the body's bytes.
START = struct.Struct("<4sHHI")


def read_message(connection: socket.socket, header_bytes: int) -> bytes:
    """The next message, whole; the rank protocol's header has 16 bytes, the engine ranks' 40."""
    header = connection.recv(header_bytes, socket.MSG_WAITALL)
    assert len(header) == header_bytes, "the connection ended in the middle of a message"
    return header + connection.recv(START.unpack_from(header)[3], socket.MSG_WAITALL)


def rank_message(kind: int, body: bytes) -> bytes:
    return START.pack(b"LSRK", 3, kind, len(body)) + bytes(4) + body


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(path))
    connection.settimeout(60)
    return connection


def test_an_agent_refuses_a_plugin_from_the_future(cluster):
    agent = cluster.agent()
    rank = connect(agent.socket)
    rank.sendall(rank_message(HELLO, b"export_plugin/9.0.0 protocol=7 teleport"))
    hello = read_message(rank, 16)
    assert hello[16:].decode() == f"trainer_agent/{RELEASE} protocol=1"
    error = read_message(rank, 16)
    assert START.unpack_from(error)[2] == ERROR
    assert error[20:].decode() == (
        f"trainer_agent {RELEASE} speaks protocol 1, export_plugin 9.0.0 speaks protocol 7; upgrade the trainer_agent"
    )


def test_an_agent_refuses_a_hello_that_is_none(cluster):
    rank = connect(cluster.agent().socket)
    rank.sendall(rank_message(HELLO, b"GET / HTTP/1.1"))
    error = read_message(rank, 16)
    assert START.unpack_from(error)[2] == ERROR and b"NAME/RELEASE protocol=NUMBER" in error


def test_a_receiver_refuses_an_engines_rank_from_the_future(cluster):
    engine_socket = cluster.directory / "engine.sock"
    cluster.receiver(cluster.agent(), engine_load="in-place", engine_socket=engine_socket)
    rank = connect(engine_socket)
    attach = json.dumps({"peer": "engine_rank/9.0.0 protocol=2", "teleport": True}).encode()
    rank.sendall(START.pack(b"LSER", 5, 1, len(attach)) + bytes(28) + attach)
    refusal = read_message(rank, 40)
    assert START.unpack_from(refusal)[2] == REFUSED
    assert (
        refusal[40:]
        .decode()
        .endswith(
            f"raas_receiver {RELEASE} speaks protocol 1, engine_rank 9.0.0 speaks protocol 2; upgrade the raas_receiver"
        )
    )
