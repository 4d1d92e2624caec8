"""What lanes promise a trainer that is fast and a link that is shared."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

from harness import wait_until
from replicas import BLOCK, ToyModel

BLOCKS = 200  # 50 MiB: more than sockets hold
RATE = 16 << 20  # slow enough that a busy machine keeps up with it


def test_no_block_is_ever_torn_by_a_trainer_that_overwrites_what_a_slow_receiver_pulls(cluster):
    model = ToyModel(blocks=BLOCKS)
    agent = cluster.agent(receiver_rate_limit=RATE)
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.step())
        receiver = cluster.receiver(agent, lanes=3)
        with receiver.recorded_syncs() as syncs:
            version = 1
            while not receiver.file().exists():
                version += 1
                tensors = model.step()
                publisher.publish(version=version, tensors=tensors)
                time.sleep(0.05)
            receiver.wait_for(model.tensors)
        # A torn block would have failed its hash, and broken its lane.
        assert receiver.ask("status")["models"][0]["lane_retries"] == 0
    assert syncs[0]["mode"] == "full" and syncs[0]["to"]["version"] > 2
    # One that waited could fill the agent's two slots beside the version that is pulled, and no third.
    assert version > 4, "the trainer waited for the receiver"


def test_each_receiver_has_its_rate_and_no_more_also_while_another_pulls(cluster):
    model = ToyModel(blocks=BLOCKS)
    agent = cluster.agent(receiver_rate_limit=RATE)
    receivers = [cluster.receiver(agent, follow=False, name=name) for name in ("one", "two")]
    with agent.publisher(model.tensors) as publisher, ThreadPoolExecutor() as pool:
        publisher.publish(version=1, tensors=model.step())
        agent.wait_for(1)
        records = pool.map(lambda receiver: receiver.ask("pull", "--full"), receivers)
        for record in records:
            assert 0.9 < record["pull_us"] / 1e6 / (BLOCKS * BLOCK / RATE) < 1.8


def test_the_limit_of_all_lanes_is_shared_by_receivers_that_pull_at_once(cluster):
    model = ToyModel(blocks=BLOCKS)
    agent = cluster.agent(lane_rate_limit=RATE)
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.step())
        began = time.monotonic()
        receivers = [cluster.receiver(agent) for _ in range(2)]
        for receiver in receivers:
            receiver.wait_for(model.tensors)
        assert time.monotonic() - began > 2 * BLOCKS * BLOCK / RATE * 0.9


def test_an_agents_deltas_are_coded_as_its_codec_says(cluster):
    sizes = {}
    for codec in ("fast", "compact"):
        model = ToyModel(blocks=BLOCKS)
        agent = cluster.agent(codec=codec, segment_dir=cluster.directory / codec)
        receiver = cluster.receiver(agent, follow=False)
        with agent.publisher(model.tensors) as publisher:
            for version, mode in ((1, "full"), (2, "delta")):
                publisher.publish(version=version, tensors=model.step())
                agent.wait_for(version)
                record = receiver.ask("pull")
                assert record["mode"] == mode
        receiver.wait_for(model.tensors)
        sizes[codec] = record["payload_bytes"]
        agent.stop()
    assert sizes["compact"] < 0.9 * sizes["fast"]


def test_a_peer_that_leaves_before_it_has_shown_a_ticket_was_not_refused(cluster):
    agent = cluster.agent()
    host, _, port = agent.addresses["lanes"].rpartition(":")
    for said in (b"", bytes(8)):
        with socket.create_connection((host, int(port)), timeout=30) as peer:
            peer.sendall(said)
            peer.shutdown(socket.SHUT_WR)
            assert len(peer.recv(1)) == 0
    with socket.create_connection((host, int(port)), timeout=30) as peer:
        peer.sendall(bytes(4096))  # no hello
    wait_until(lambda: "lane_refused" in agent.log(), "the one that says something else is refused")
    refused = [json.loads(line) for line in agent.log().splitlines() if "lane_refused" in line]
    assert [(line["times"], line["error"]) for line in refused] == [(1, "protocol")]
