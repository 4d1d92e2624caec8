"""Models that differ from their configuration: what is wrong on one rank is named on every rank."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import trainer
from harness import MODEL
from ranks import Rank, Ranks
from topologies import topology_of


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
