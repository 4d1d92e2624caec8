"""Lanes of daemons with TLS: what a listener learns, and what a bad network does to them."""

import contextlib
import socket
import threading

import pytest
from credentials import Ca
from ports import ReservedPort
from proxy import FAULTS, FaultProxy, Proxy
from replicas import ToyModel, raw_bytes

RUN = 32  # bytes of weights that are looked for
HELLO = b"LSLO\x02\x00\x30\x00"


@pytest.fixture
def ca(cluster):
    ca = Ca(cluster.directory / "ca")
    ca.allow(("receiver*", "receiver"), ("operator", "operator"))
    return ca


class Listener(Proxy):
    """Passes everything on, and keeps it in `heard`."""

    def __init__(self, upstream: str) -> None:
        self.heard: "list[bytes]" = []
        super().__init__(upstream)

    def _connection(self, client: socket.socket, upstream: socket.socket) -> "_Heard":
        return _Heard(client, upstream, self.heard)


class _Heard:
    def __init__(self, client: socket.socket, upstream: socket.socket, heard: "list[bytes]") -> None:
        self._ends = (client, upstream)
        self._heard = heard

    def run(self) -> None:
        client, upstream = self._ends
        threading.Thread(target=self._pass_on, args=(upstream, client), daemon=True).start()
        self._pass_on(client, upstream)

    def stop(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                self._heard.append(piece)
                sink.sendall(piece)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("encrypted", [True, False])
def test_a_listener_reads_weights_and_messages_on_plain_lanes_and_none_on_encrypted_ones(cluster, ca, encrypted):
    model = ToyModel(blocks=8)
    lanes = ReservedPort()
    options = {name: ca.daemon(name) if encrypted else {} for name in ("agent", "receiver-0")}
    with Listener(lanes.address) as listener:
        agent = cluster.agent(lane_listen=lanes.address, lane_advertise=listener.address, **options["agent"])
        receiver = cluster.receiver(agent, **options["receiver-0"])
        with agent.publisher(model.tensors) as publisher:
            model.reach(publisher, 1, receiver)
        heard = b"".join(listener.heard)
    weights = raw_bytes(model.tensors["layers.0.weight"])
    assert len(heard) > len(weights)
    assert (HELLO in heard) != encrypted
    assert any(weights[at : at + RUN] in heard for at in range(0, len(weights), 16 * RUN)) != encrypted


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - {"clean"}))
def test_a_fault_of_the_network_on_encrypted_lanes_is_survived(cluster, ca, fault):
    model = ToyModel(blocks=40)
    lanes = ReservedPort()
    with FaultProxy(lanes.address, 1, [fault, "clean"], reach_bytes=4 << 20) as proxy:
        agent = cluster.agent(lane_listen=lanes.address, lane_advertise=proxy.address, **ca.daemon("agent"))
        receiver = cluster.receiver(agent, **ca.daemon("receiver-0"))
        with agent.publisher(model.tensors) as publisher:
            for version in range(1, 4):
                publisher.publish(version=version, tensors=model.step(density=0.05))
                receiver.wait_for(model.tensors, timeout_s=90)
