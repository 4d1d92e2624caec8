"""Calls that a peer begins and resets take a bounded amount of a daemon's memory, by plaintext and by TLS, whoever calls."""

import os

import pytest
from credentials import Ca
from harness import wait_until
from http2_peer import Http2Peer
from process_memory import memory_of

MIB = 1 << 20
STREAMS = int(os.environ.get("LOCKSTEP_RESET_STREAMS", 8_000))
STREAMS_OF_A_CONNECTION = 4_000
# Of 2,048 calls that are not answered, the bound of the control port; a busy machine has all of them at once, at some 50 KiB
# each. Without the bound all streams would stay, 400 MiB.
MOST_GROWTH = 2_048 * 64 * 1024


@pytest.mark.parametrize(
    ("peer", "method"),
    [("plaintext", "/unknown.Service/Method"), ("operator", "/lockstep.v1.TrainerAgent/GetStatus")],
)
def test_streams_that_are_reset_take_a_bounded_amount_of_memory(cluster, peer, method):
    ca = Ca(cluster.directory / "ca")
    ca.allow(("operator", "operator"))
    options = {} if peer == "plaintext" else ca.daemon("agent")
    agent = cluster.agent(**options)
    credentials = None if peer == "plaintext" else ca.files(peer)
    agent.credentials = credentials or {}
    before = memory_of("VmHWM", agent.process.pid)
    for _ in range(0, STREAMS, STREAMS_OF_A_CONNECTION):
        with Http2Peer(agent.address, credentials) as attacker:
            attacker.reset_streams(STREAMS_OF_A_CONNECTION, method)
            assert not attacker.is_closed()
    after = memory_of("VmHWM", agent.process.pid)
    print(f"{peer}, {method}: {before / MIB:.0f} MiB, and {after / MIB:.0f} MiB after {STREAMS} streams")
    assert after - before < MOST_GROWTH
    wait_until(agent.answers, "it answers others again")


def test_a_peer_without_a_role_does_not_reach_grpc(cluster):
    ca = Ca(cluster.directory / "ca")
    ca.allow(("operator", "operator"))
    agent = cluster.agent(**ca.daemon("agent"))
    with Http2Peer(agent.address, ca.files("stranger")) as stranger:
        assert stranger.is_closed()
    assert agent.log().count("access_refused") == 1 and "may not connect" in agent.log()
