"""Trainers over several hosts, an agent on each: a receiver puts the parts together, bit for bit."""

from pathlib import Path
from typing import Any

import fsdp_trainer
import pytest
import torch
import trainer
from fsdp_trainer import Layout
from harness import MODEL
from hf_models import published_tensors
from ranks import Rank, Ranks
from topologies import Topology, topology_of

import lockstep

# The host of each rank. Along pipeline stages and experts, no byte crosses hosts.
ALONG = {
    "llama-tp2pp2": ("llama", topology_of("tp2pp2"), (0, 0, 1, 1)),
    "qwen2-tp2pp2": ("qwen2", topology_of("tp2pp2"), (0, 0, 1, 1)),
    "qwen3-pp4": ("qwen3", Topology(pp=4), (0, 1, 2, 3)),
    "mixtral-pp2vpp2": ("mixtral", topology_of("pp2vpp2"), (0, 1)),
    "qwen2_moe-ep2": ("qwen2_moe", Topology(dp=2, ep=2), (0, 1)),
    "qwen3_moe-ep4": ("qwen3_moe", Topology(dp=4, ep=4), (0, 1, 2, 3)),
    "moonlight-pp2ep2": ("moonlight", topology_of("tp2pp2ep2"), (0, 0, 1, 1)),
    "deepseek_v3-mtp_alone": ("deepseek_v3", topology_of("mtp_alone", mtp=True), (0, 1, 2, 3)),
    "glm4_moe-tp2pp2": ("glm4_moe", topology_of("tp2pp2", mtp=True), (0, 0, 1, 1)),
}
ACROSS = {
    "llama-tp2": ("llama", topology_of("tp2"), (0, 1)),
    "qwen3_moe-tp2ep2": ("qwen3_moe", topology_of("tp2ep2"), (0, 1)),
    "deepseek_v3-tp2pp2": ("deepseek_v3", topology_of("tp2pp2", mtp=True), (0, 1, 1, 0)),
}


def open_by_host(rank: Rank, sockets: "list[Path]", hosts: "tuple[int, ...]", **options: Any) -> "dict[str, Any]":
    return trainer.open_exporter(rank, sockets[hosts[rank.number]], MODEL, by_host=True, **options)


def open_fsdp_by_host(rank: Rank, sockets: "list[Path]") -> None:
    fsdp_trainer.open_exporter(rank, sockets[rank.number], MODEL, by_host=True)


def publish_numbered(rank: Rank) -> int:
    """The number that the ranks agree on."""
    return rank.exporter.publish().version


def total(tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


@pytest.mark.parametrize("name", [*ALONG, *ACROSS])
def test_a_receiver_holds_the_whole_of_the_parts(cluster, checkpoints, name):
    model, topology, hosts = {**ALONG, **ACROSS}[name]
    agents = [cluster.agent(name=f"agent-{host}") for host in sorted(set(hosts))]
    receiver = cluster.receiver(agents)
    first, second = checkpoints.get(model, seed=1), checkpoints.get(model, seed=2)
    with Ranks(topology) as ranks:
        ranks.call(trainer.build, first)
        ranks.call(trainer.load_by_mbridge, first)
        opened = ranks.call(open_by_host, [agent.socket for agent in agents], hosts)
        assert len({rank["plan"] for rank in opened}) == len({rank["run"] for rank in opened}) == 1
        for version, checkpoint in ((1, first), (2, second), (3, first)):
            ranks.call(trainer.load_by_mbridge, checkpoint)
            stats = ranks.call(trainer.publish, version)
            tensors = published_tensors(checkpoint)
            receiver.wait_for(tensors)
            assert sum(rank.bytes_copied + rank.bytes_sent for rank in stats) == total(tensors)
            assert (sum(rank.bytes_sent for rank in stats) == 0) == (name in ALONG)
    held = [agent.model_status()["model_bytes"] for agent in agents]
    assert sum(held) == total(tensors) and max(held) < 2 * total(tensors) / len(agents)


def test_an_fsdp_trainer_over_two_hosts_sends_half(cluster, checkpoints):
    agents = [cluster.agent(name=f"agent-{host}") for host in range(2)]
    receiver = cluster.receiver(agents)

    with Ranks(Topology(dp=2)) as ranks:
        ranks.call(fsdp_trainer.build, checkpoints.get("qwen3"), Layout((2,)))
        ranks.call(open_fsdp_by_host, [agent.socket for agent in agents])
        for version in (1, 2, 3):
            ranks.call(fsdp_trainer.train)
            stats = ranks.call(fsdp_trainer.publish, version)
            tensors = ranks.call(fsdp_trainer.saved)[0]
            receiver.wait_for(tensors)
            sent = sum(rank.bytes_sent for rank in stats)
            assert 0.4 * total(tensors) < sent < 0.6 * total(tensors)


def test_ranks_agree_on_numbers_and_a_rank_that_fails_ends_the_version_on_all_hosts(cluster, checkpoints):
    model, topology, hosts = ACROSS["llama-tp2"]
    agents = [cluster.agent(name=f"agent-{host}") for host in range(2)]
    receiver = cluster.receiver(agents)
    checkpoint = checkpoints.get(model)
    with Ranks(topology) as ranks:
        ranks.call(trainer.build, checkpoint)
        ranks.call(trainer.load_by_mbridge, checkpoint)
        ranks.call(open_by_host, [agent.socket for agent in agents], hosts)
        assert ranks.call(publish_numbered) == [1, 1]
        receiver.wait_for(published_tensors(checkpoint))
        outcomes = ranks.call(fail_once)
        assert all(name for name, _ in outcomes), outcomes
        for name, sentence in ranks.call(trainer.refusal, trainer.publish, 2):
            assert (
                name == "BadDataError" and "version: 2 was tried in this run; with by_host, give 3 or more" in sentence
            )
        assert ranks.call(publish_numbered) == [3, 3]
        receiver.wait_for(published_tensors(checkpoint))
        assert receiver.model_status()["held"]["version"] == 3


def fail_once(rank: Rank) -> "tuple[str, str]":
    """Publishes, and fails on rank 1, before it has given its share."""
    if rank.number == 1:
        way = rank.exporter._way
        whole, way._whole_locals = way._whole_locals, lambda: (_ for _ in ()).throw(MemoryError("none left"))
        try:
            rank.exporter.publish()
        except MemoryError as error:
            return "MemoryError", str(error)
        finally:
            way._whole_locals = whole
    return trainer.refusal(rank, publish_numbered)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"derive": {"q": lockstep.Fp8Block()}}, "agents do not derive from parts"),
        ({"skip_while_away": True}, "the agents of other hosts may be there"),
        ({"on_agent_host": False}, "there is an agent on each host"),
        ({"socket": "/nowhere/export.sock", "connect_timeout": 0.2}, "there is no agent on this rank's host"),
    ],
    ids=["derive", "skip", "elsewhere", "away"],
)
def test_what_parts_cannot_be_is_refused(cluster, options, sentence):
    options = {"socket": cluster.directory / "none.sock", **options}
    with pytest.raises(lockstep.Error) as refusal:
        lockstep.Publisher.from_tensors({"a": torch.zeros(2)}, model=MODEL, by_host=True, **options)
    assert sentence in str(refusal.value)
