"""Ranks on another host than the agent send their shards to a rank on its host, bucket by bucket, over Gloo."""

from pathlib import Path

import pytest
import trainer
from harness import MODEL
from hf_models import published_tensors
from hosts import HOSTS, network_of
from process_memory import PeakMemory
from ranks import Rank, Ranks
from topologies import Topology, topology_of

BUCKET_BYTES = 1 << 20
SLACK_BYTES = 4 << 20  # the compiled plan, and what Gloo and Python have of their own
WIDE = {"hidden_size": 512, "intermediate_size": 1536, "vocab_size": 32_000, "head_dim": 128}


def open_on_host(rank: Rank, socket: Path, remote: "tuple[int, ...]", decide: bool) -> "dict[str, object]":
    """Opens the exporter; `decide`: forced to be on another host, or left to find out that the socket is not there."""
    on_agents_host = rank.number not in remote if decide else None
    return trainer.open_exporter(rank, socket, MODEL, on_agent_host=on_agents_host, bucket_bytes=BUCKET_BYTES)


def total_bytes(tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


CASES = {
    "llama-tp2pp2": ("llama", topology_of("tp2pp2"), (2, 3)),
    "llama-tp2pp2-one-beside": ("llama", topology_of("tp2pp2"), (0, 1, 3)),
    "qwen3_moe-tp2ep2": ("qwen3_moe", topology_of("tp2ep2"), (1,)),
    "qwen3_moe-ep2etp2": ("qwen3_moe", topology_of("ep2etp2"), (1, 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_each_shard_reaches_the_agent_once_and_the_bytes_are_the_same(cluster, checkpoints, name):
    model, topology, remote = CASES[name]
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    first, second = checkpoints.get(model, seed=1), checkpoints.get(model, seed=2)
    with Ranks(topology) as ranks:
        ranks.call(trainer.build, first)
        ranks.call(trainer.load_by_mbridge, first)
        opened = ranks.call(open_on_host, agent.socket, remote, True)
        assert len({rank["plan"] for rank in opened}) == 1
        assert not any(opened[number]["writes"] for number in remote)
        assert len({each["run"] for each in opened}) == 1
        for version, checkpoint in ((1, first), (2, second), (3, first)):
            ranks.call(trainer.load_by_mbridge, checkpoint)
            stats = ranks.call(trainer.publish, version)
            tensors = published_tensors(checkpoint)
            receiver.wait_for(tensors)
            assert_sent_once(stats, tensors, remote)


def assert_sent_once(stats, tensors, remote: "tuple[int, ...]") -> None:
    sent = sum(rank.bytes_sent for rank in stats)
    assert sent == sum(rank.bytes_received for rank in stats) > 0
    assert sum(rank.bytes_copied for rank in stats) + sent == total_bytes(tensors)
    assert sum(rank.buckets_sent for rank in stats) == sum(rank.buckets_received for rank in stats)
    for number, rank in enumerate(stats):
        assert rank.exchange_memory_bytes <= BUCKET_BYTES
        if number in remote:
            assert rank.bytes_copied == rank.bytes_received == 0
        else:
            assert rank.bytes_sent == 0


def test_replicas_on_another_host_send_nothing_and_wait_for_no_rank(cluster, checkpoints):
    checkpoint = checkpoints.get("llama")
    tensors = published_tensors(checkpoint)
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with Ranks(Topology(tp=2, dp=2)) as ranks:
        ranks.call(trainer.build, checkpoint)
        ranks.call(trainer.load_by_mbridge, checkpoint)
        opened = ranks.call(open_on_host, agent.socket, (2, 3), True)
        assert [rank["writes"] for rank in opened] == [True, True, False, False]
        stats = ranks.call(trainer.publish, 1, only=[2, 3])
        done = [value for rank in stats for name, value in vars(rank).items() if "bytes" in name or "buckets" in name]
        assert len(done) == 2 * 7 and not any(done)
        stats = ranks.call(trainer.publish, 1, only=[0, 1])
        receiver.wait_for(tensors)
    assert sum(rank.bytes_copied for rank in stats) == total_bytes(tensors)
    assert sum(rank.bytes_sent + rank.bytes_received for rank in stats) == 0


def measured_publish(rank: Rank, socket: Path, remote: "tuple[int, ...]"):
    """Opens and publishes two versions; (stats of the second, growth of private memory over all of it)."""
    with PeakMemory() as memory:
        open_on_host(rank, socket, remote, True)
        trainer.publish(rank, 1)
        stats = trainer.publish(rank, 2)
    return stats, memory.grown


def test_the_exchange_takes_one_buckets_memory_whatever_the_model_is(cluster, checkpoints):
    checkpoint = checkpoints.get("llama", **WIDE)
    tensors = published_tensors(checkpoint)
    remote = (2, 3)
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with Ranks(topology_of("tp2pp2")) as ranks:
        ranks.call(trainer.build, checkpoint)
        ranks.call(trainer.load_by_mbridge, checkpoint)
        results = ranks.call(measured_publish, agent.socket, remote)
        receiver.wait_for(tensors)
    assert_sent_once([stats for stats, _ in results], tensors, remote)
    for number in remote:
        assert results[number][0].bytes_sent > 3 * (BUCKET_BYTES + SLACK_BYTES) and results[number][0].buckets_sent > 10
    for number, (_, grown) in enumerate(results):
        assert grown <= BUCKET_BYTES + SLACK_BYTES, f"rank {number}: {grown >> 10} KiB"


@pytest.mark.parametrize("hosts", HOSTS)
def test_a_rank_finds_out_that_the_agent_is_on_another_host(cluster, checkpoints, hosts):
    checkpoint = checkpoints.get("llama")
    remote = (2, 3)
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with network_of(hosts, remote, hidden=cluster.directory) as prepare:
        with Ranks(topology_of("tp2pp2"), prepare=prepare) as ranks:
            ranks.call(trainer.build, checkpoint)
            ranks.call(trainer.load_by_mbridge, checkpoint)
            opened = ranks.call(open_on_host, agent.socket, remote, hosts == "one host")
            assert [rank["writes"] for rank in opened] == [True, True, False, False]
            for version in (1, 2):
                stats = ranks.call(trainer.publish, version)
                receiver.wait_for(published_tensors(checkpoint))
                assert_sent_once(stats, published_tensors(checkpoint), remote)
