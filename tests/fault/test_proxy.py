"""The proxies themselves: each fault does what its name says."""

import contextlib
import os
import socket
import threading
import time

import pytest
from proxy import FAULTS, DelayProxy, FaultProxy, Proxy

CONTENT = os.urandom(3 << 20)


@pytest.fixture(scope="module")
def source():
    """A server that sends CONTENT to every client."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(client):
        try:
            client.sendall(CONTENT)
            client.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def accept():
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield "127.0.0.1:%d" % listener.getsockname()[1]
    listener.close()


def read_all(proxy: Proxy):
    """What a client gets, and whether it ended with an error."""
    received = bytearray()
    host, _, port = proxy.address.rpartition(":")
    # On a busy machine the end may come before connect() has returned, which then says so.
    with contextlib.suppress(ConnectionResetError):
        with socket.create_connection((host, int(port)), timeout=20) as client:
            while piece := client.recv(1 << 16):
                received += piece
        return bytes(received), False
    return bytes(received), True


@pytest.mark.parametrize("fault", ["clean", "split", "stall"])
def test_harmless_faults_pass_every_byte_on(source, fault):
    with FaultProxy(source, 1, [fault]) as proxy:
        assert read_all(proxy) == (CONTENT, False)


@pytest.mark.parametrize("fault", ["half_close", "truncate", "reset"])
def test_tearing_faults_pass_a_prefix_on(source, fault):
    with FaultProxy(source, 2, [fault]) as proxy:
        received, was_reset = read_all(proxy)
    assert len(received) < len(CONTENT) and CONTENT.startswith(received)
    assert was_reset == (fault == "reset")


def test_corruption_flips_one_bit(source):
    with FaultProxy(source, 3, ["corrupt"]) as proxy:
        received, _ = read_all(proxy)
    assert len(received) == len(CONTENT)
    assert sum((a ^ b).bit_count() for a, b in zip(received, CONTENT)) == 1


def test_the_same_seed_draws_the_same_faults(source):
    def draw():
        with FaultProxy(source, 4, FAULTS) as proxy:
            return [len(read_all(proxy)[0]) for _ in range(6)], proxy.seen

    first, second = draw(), draw()
    assert first[1] == second[1]


def test_a_long_link_passes_every_byte_on_and_none_before_its_time(source):
    with DelayProxy(source, 0.3) as proxy:
        began = time.monotonic()
        assert read_all(proxy) == (CONTENT, False)
        assert time.monotonic() - began >= 0.3
