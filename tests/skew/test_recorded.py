"""Releases of before go on working with this one: what they said, and what they left on disk, as recorded in
directories named by release (record.py)."""

import fcntl
import json
import mmap
import os
import socket
import struct
from pathlib import Path

import pytest
from recording import RELEASES, ROOT, START, field_table, read_message, tensors, unpack
from replicas import raw_bytes

pytestmark = pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)

OPENED, BEGUN, RANGES = 2, 4, 5  # of the rank protocol
ATTACHED, HOLD = 2, 4  # of the engine ranks'
RUNS = {OPENED: slice(16, 32)}  # a new one each time
HELD = slice(16, 40)  # of an engine rank's header: run and version


def messages(path: Path) -> "list[tuple[str, bytes, int]]":
    return [
        (entry["from"], bytes.fromhex(entry["bytes"]), entry["descriptors"]) for entry in json.loads(path.read_text())
    ]


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(path))
    connection.settimeout(60)
    return connection


def without(data: bytes, part: "slice | None") -> bytes:
    return data if part is None else data[: part.start] + data[part.stop :]


def type_of(message: bytes) -> int:
    return START.unpack_from(message)[2]


class Rank:
    """Plays a recorded rank to an agent, and writes a version into its half before it says which bytes are final."""

    def __init__(self, socket_path: Path) -> None:
        self._connection = connect(socket_path)
        self._halves: "list[mmap.mmap]" = []
        self._data_offset, self._half, self._version = 0, 0, 0

    def play(self, recorded: "list[tuple[str, bytes, int]]") -> None:
        for sender, message, descriptors in recorded:
            if sender == "agent":
                self._expect(message, descriptors)
                continue
            if type_of(message) == RANGES:
                self._write()
            self._connection.sendall(message)

    def _expect(self, recorded: bytes, descriptors: int) -> None:
        answer, fds = read_message(self._connection, 16)
        run = RUNS.get(type_of(recorded))
        assert without(answer, run) == without(recorded, run) and len(fds) == descriptors
        if type_of(answer) == OPENED:
            _, image_bytes, self._data_offset = struct.unpack_from("<QQQ", answer, 32)
            self._halves = [mmap.mmap(fd, image_bytes) for fd in fds[1:]]
        if type_of(answer) == BEGUN:
            (self._half,) = struct.unpack_from("<I", answer, 16)

    def _write(self) -> None:
        self._version += 1
        content = b"".join(raw_bytes(tensor) for tensor in tensors(self._version).values())
        self._halves[self._half][self._data_offset : self._data_offset + len(content)] = content


def test_a_rank_publishes(cluster, release):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    rank = Rank(agent.socket)
    rank.play(messages(release / "rank.json"))
    receiver.wait_for(tensors(2))


def lent_memory(attach: bytes) -> "tuple[int, dict[str, int]]":
    """Host memory as the recorded rank had it, and where its parameters lie."""
    description = json.loads(attach[40:])["description"]
    fd = os.memfd_create("lockstep-skew", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, description["halves"][0][0]["bytes"])
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd, {parameter["name"]: parameter["offset"] for parameter in description["parameters"]}


def test_an_engines_rank_is_written(cluster, release):
    agent = cluster.agent()
    engine_socket = cluster.directory / "engine.sock"
    receiver = cluster.receiver(agent, engine_load="in-place", engine_socket=engine_socket)
    recorded = messages(release / "engine.json")
    memory, offsets = lent_memory(recorded[0][1])
    rank = connect(engine_socket)
    rank.sendmsg([recorded[0][1]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", memory))])
    with agent.publisher(tensors(1)) as publisher:
        published = holds = 0  # version 1 is held for as soon as the rank is attached
        for sender, message, descriptors in recorded[1:]:
            if sender == "rank":
                rank.sendall(message)
                continue
            if type_of(message) == ATTACHED or (type_of(message) == HOLD and holds):
                published += 1
                publisher.publish(published, tensors(published))
            holds += type_of(message) == HOLD
            answer, fds = read_message(rank, 40)
            assert without(answer, HELD) == without(message, HELD) and len(fds) == descriptors
        receiver.wait_for(tensors(2))
        for name, tensor in tensors(2).items():
            content = raw_bytes(tensor)
            assert os.pread(memory, len(content), offsets[name]) == content, name


def test_an_agent_takes_up_its_segments_and_deltas(cluster, release):
    segments = cluster.directory / "segments"
    unpack(release / "agent.tar.gz", segments)
    agent = cluster.agent(segment_dir=segments)
    status = agent.model_status()
    assert (status["newest_version"], len(status["deltas"])) == (2, 1)
    cluster.receiver(agent).wait_for(tensors(2))


def test_a_receiver_takes_up_its_replicas(cluster, release):
    root = cluster.directory / "root"
    unpack(release / "replica.tar.gz", root)
    receiver = cluster.receiver("127.0.0.1:1", root=root)
    assert receiver.model_status()["held"]["version"] == 2
    receiver.wait_for(tensors(2))


def test_every_field_and_call_of_the_control_plane_is_what_it_was(release):
    protos = [path.relative_to(ROOT) for path in sorted((ROOT / "proto/lockstep/v1").glob("*.proto"))]
    gone = set((release / "protos.txt").read_text().splitlines()) - set(field_table(protos))
    assert not gone, f"keep these, or reserve them and raise the protocol: {sorted(gone)}"
