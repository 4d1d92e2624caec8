"""Ranks that die while a version is published, and models that differ from their configuration."""

import random
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import trainer
from harness import MODEL, wait_until
from hf_models import published_tensors
from ranks import Rank, Ranks
from replicas import data_hash, differing_tensor, tensors_hash
from topologies import topology_of

TP2PP2 = topology_of("tp2pp2")
PLACES = pytest.mark.parametrize("remote", [(), (2, 3)], ids=["local", "remote"])
PUBLISH_S = {(): 0.03, (2, 3): 0.15}  # about what publishing the wide model takes
WIDE = {"hidden_size": 512, "intermediate_size": 1536, "vocab_size": 8190, "head_dim": 128}


def open_on_host(rank: Rank, socket: Path, remote: "tuple[int, ...]", run: "str | None" = None) -> str:
    """Opens the exporter, in small buckets; the run."""
    on_agents_host = rank.number not in remote
    options = {"on_agent_host": on_agents_host, "bucket_bytes": 1 << 20, "run": run, "call_timeout": 10}
    return trainer.open_exporter(rank, socket, MODEL, **options)["run"]


def started(ranks: Ranks, checkpoint: Path, agent, remote: "tuple[int, ...]", run: "str | None" = None) -> str:
    """A trainer with the checkpoint's weights, its exporter open; the run."""
    ranks.call(trainer.build, checkpoint)
    ranks.call(trainer.load_by_mbridge, checkpoint)
    return ranks.call(open_on_host, agent.socket, remote, run)[0]


def publish(rank: Rank, version: int) -> "tuple[str, str]":
    return trainer.refusal(rank, trainer.publish, version)


@PLACES
def test_a_rank_killed_before_it_wrote_its_part_aborts_the_version(cluster, checkpoints, remote):
    first, second = checkpoints.get("llama", seed=1), checkpoints.get("llama", seed=2)
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with Ranks(TP2PP2) as ranks:
        run = started(ranks, first, agent, remote)
        ranks.call(publish, 1)
        receiver.wait_for(published_tensors(first))
        ranks.call(trainer.load_by_mbridge, second)
        ranks.start(publish, 2, only=[0, 1, 2])
        wait_until(lambda: agent.model_status()["writing_version"] == 2, "version 2 is being written")
        ranks.kill(3)
        outcomes = ranks.answers(only=[0, 1, 2])
        if remote:
            assert any("rank 3" in message for _, message in outcomes), outcomes
        wait_until(lambda: agent.model_status()["versions_aborted"] == 1, "the agent aborts version 2")
        assert agent.model_status()["newest_version"] == 1
    assert differing_tensor(receiver.file(), published_tensors(first)) is None
    assert receiver.model_status()["held"] == {"run": run, "version": 1}
    with Ranks(TP2PP2) as ranks:
        assert started(ranks, second, agent, remote, run) == run
        assert ranks.call(publish, 3) == [("", "")] * 4
        receiver.wait_for(published_tensors(second))
    assert receiver.model_status()["held"] == {"run": run, "version": 3}


@PLACES
def test_a_rank_killed_at_any_moment_of_a_publish_leaves_whole_versions(cluster, checkpoints, remote):
    randomness = random.Random(7)
    directories = [checkpoints.get("llama", seed=seed, **WIDE) for seed in (1, 2)]
    hashes = [tensors_hash(published_tensors(directory)) for directory in directories]
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    run, version = None, 0
    for victim in range(4):
        with Ranks(TP2PP2) as ranks:
            run = started(ranks, directories[0], agent, remote, run)
            version += 1
            assert ranks.call(publish, version) == [("", "")] * 4
            wait_until(lambda: holds(receiver, version), f"version {version} arrives")
            assert data_hash(receiver.file()) == hashes[0]
            ranks.call(trainer.load_by_mbridge, directories[1])
            version += 1
            ranks.start(publish, version)
            time.sleep(randomness.uniform(0, PUBLISH_S[remote]))
            ranks.kill(victim)
            survivors = [number for number in range(4) if number != victim]
            ranks.answers(only=survivors)
            assert data_hash(receiver.file()) in hashes, f"rank {victim} killed: a version that was not published"
    with Ranks(TP2PP2) as ranks:
        started(ranks, directories[1], agent, remote, run)
        version += 1
        assert ranks.call(publish, version) == [("", "")] * 4
        wait_until(lambda: holds(receiver, version), "the last version arrives")
        assert data_hash(receiver.file()) == hashes[1]


def holds(receiver, version: int) -> bool:
    held = receiver.model_status()["held"]
    return bool(held) and held["version"] == version and receiver.file().exists()


# ---- models that differ from their configuration ----


def linear_of_last_layer(rank: Rank) -> "torch.nn.Module":
    return rank.chunks[-1].decoder.layers[-1].mlp.linear_fc2


def add_parameter(rank: Rank) -> None:
    linear_of_last_layer(rank).register_parameter("lora", torch.nn.Parameter(torch.zeros(4, dtype=torch.bfloat16)))


def rename_parameter(rank: Rank) -> None:
    linear = linear_of_last_layer(rank)
    weight = linear.weight
    del linear.weight
    linear.register_parameter("kernel", weight)


def drop_parameter(rank: Rank) -> None:
    del linear_of_last_layer(rank).weight


def widen_parameter(rank: Rank) -> None:
    weight = linear_of_last_layer(rank).weight
    weight.data = torch.zeros(weight.shape[0], weight.shape[1] + 1, dtype=weight.dtype)


def change_config(rank: Rank) -> None:
    rank.hf.num_key_value_heads = 4


def change_dtype(rank: Rank) -> None:
    weight = linear_of_last_layer(rank).weight
    weight.data = weight.data.half()


LINEAR = "decoder.layers.3.mlp.linear_fc2"
# What is wrong, on which ranks, and what every rank must name.
FAULTS = {
    "extra": (add_parameter, [1], [f"{LINEAR}.lora"]),
    "renamed": (rename_parameter, [1], [f"{LINEAR}.kernel"]),
    "missing": (drop_parameter, [1], ["model.layers.3.mlp.down_proj.weight"]),
    "shape": (widen_parameter, [1], [f"{LINEAR}.weight", "49", "48"]),
    "other-config": (change_config, [1], ["configuration of rank 1", "rank 0"]),
    "wrong-config": (change_config, [0, 1], ["decoder.layers.0.self_attention.linear_qkv.weight", "64", "96"]),
}


def break_and_open(rank: Rank, checkpoint: Path, socket: Path, fault, broken: "list[int]") -> "tuple[str, str]":
    trainer.build(rank, checkpoint)
    if rank.number in broken:
        fault(rank)
    return trainer.refusal(rank, trainer.open_exporter, socket, MODEL)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_one_rank_is_named_on_every_rank_before_the_agent_hears_of_the_model(cluster, checkpoints, name):
    fault, broken, words = FAULTS[name]
    agent = cluster.agent()
    with Ranks(topology_of("tp2")) as ranks:
        for kind, message in ranks.call(break_and_open, checkpoints.get("llama"), agent.socket, fault, broken):
            assert kind == "BadDataError"
            for word in words:
                assert word in message
    assert agent.ask("status")["models"] == []


def test_a_dtype_of_one_rank_fails_all_of_them_before_anything_is_published(cluster, checkpoints):
    agent = cluster.agent()
    with Ranks(topology_of("tp2")) as ranks:
        checkpoint = checkpoints.get("llama")
        outcomes = ranks.call(break_and_open, checkpoint, agent.socket, change_dtype, [1])
    assert [kind for kind, _ in outcomes] == ["AbortedError", "BadDataError"]
    for _, message in outcomes:
        assert f"{LINEAR}.weight" in message and "F16" in message and "rank 1" in message
    assert [model["newest_version"] for model in agent.ask("status")["models"]] in ([], [0])


def open_alone(rank: Rank, checkpoint: Path, socket: Path) -> "tuple[str, str]":
    """Opens with a group of which the last rank is no member."""
    trainer.build(rank, checkpoint)
    members = list(range(rank.topology.world - 1))
    group = dist.new_group(members)
    if rank.number not in members:
        return "", ""
    return trainer.refusal(rank, trainer.open_exporter, socket, MODEL, group=group)


@pytest.mark.parametrize(
    "topology, missing", [("tp2", "model.embed_tokens.weight"), ("pp2", "model.layers.2.input_layernorm.weight")]
)
def test_a_group_without_one_of_the_ranks_is_refused_with_what_no_rank_holds(cluster, checkpoints, topology, missing):
    agent = cluster.agent()
    with Ranks(topology_of(topology)) as ranks:
        kind, message = ranks.call(open_alone, checkpoints.get("llama"), agent.socket)[0]
    assert kind == "BadDataError" and missing in message
    assert agent.ask("status")["models"] == []


def grow_and_publish(rank: Rank, version: int) -> "tuple[str, str]":
    widen_parameter(rank)
    return publish(rank, version)


def test_a_model_that_changes_its_shape_later_is_refused_and_the_replica_stays(cluster, checkpoints):
    checkpoint = checkpoints.get("llama")
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with Ranks(topology_of("tp2")) as ranks:
        started(ranks, checkpoint, agent, ())
        ranks.call(publish, 1)
        receiver.wait_for(published_tensors(checkpoint))
        for kind, message in ranks.call(grow_and_publish, 2):
            assert kind == "BadDataError" and f"{LINEAR}.weight" in message
        assert agent.model_status()["newest_version"] == 1
    assert differing_tensor(receiver.file(), published_tensors(checkpoint)) is None
