"""Real Megatron models, loaded by mbridge, published by lockstep.Publisher: a receiver holds the original checkpoints.

All ranks are on one host. Versions 1 and 2 are two checkpoints of transformers; version 3 is an update that every
rank computes on its own shards and the test on whole tensors.
"""

import shutil
from pathlib import Path

import hf_models
import pytest
import torch
import trainer
from cases import CASES, EVERYWHERE, SOMEWHERE, Case
from harness import MODEL
from hf_models import published_tensors
from megatron_models import weights
from ranks import Rank, Ranks
from topologies import topology_of

import lockstep


def stepped(weight: torch.Tensor, towards: torch.Tensor) -> torch.Tensor:
    """A small training step, element by element: a few elements become those of `towards`."""
    return torch.where((weight - towards).abs() < 0.002, towards, weight)


def step_towards(rank: Rank, checkpoint: Path) -> None:
    """Takes the step from the weights that the rank has, into other memory, as optimizers with one flat buffer do."""
    before = trainer.snapshot(rank)
    trainer.load_by_mbridge(rank, checkpoint)
    now = [pair for chunk in rank.chunks for pair in weights(chunk)]
    for (_, old), (_, tensor) in zip(before, now):
        tensor.data = stepped(old, tensor.data)


@pytest.fixture(scope="module")
def daemons(module_cluster):
    """One agent and one receiver for all cases; each is a model of its own name."""
    agent = module_cluster.agent()
    return agent, module_cluster.receiver(agent, models=[str(case) for case in CASES])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_receiver_holds_what_the_checkpoints_hold(daemons, checkpoints, case):
    agent, receiver = daemons
    first, second = checkpoints.get(case.model, seed=1), checkpoints.get(case.model, seed=2)
    whole = [published_tensors(first), published_tensors(second)]
    whole.append({name: stepped(tensor, whole[0][name]) for name, tensor in whole[1].items()})
    with Ranks(case.topology) as ranks:
        ranks.call(trainer.build, first, case.te_names)
        ranks.call(trainer.load_by_mbridge, first)
        opened = ranks.call(trainer.open_exporter, agent.socket, str(case))
        assert len({rank["plan"] for rank in opened}) == 1
        publish_and_compare(ranks, receiver, case, 1, whole[0])
        ranks.call(trainer.load_by_mbridge, second)
        publish_and_compare(ranks, receiver, case, 2, whole[1])
        ranks.call(step_towards, first)
        publish_and_compare(ranks, receiver, case, 3, whole[2])


def publish_and_compare(ranks: Ranks, receiver, case: Case, version: int, tensors) -> None:
    stats = ranks.call(trainer.publish, version)
    receiver.wait_for(tensors, model=str(case))
    assert receiver.model_status(str(case))["held"]["version"] == version
    assert sum(rank.bytes_copied for rank in stats) == sum(tensor.nbytes for tensor in tensors.values())
    assert {(rank.bytes_sent, rank.bytes_received) for rank in stats} == {(0, 0)}


def start(ranks: Ranks, checkpoint: Path, socket: Path, **options) -> "list[dict]":
    """A trainer with the checkpoint's weights and an open exporter."""
    ranks.call(trainer.build, checkpoint)
    ranks.call(trainer.load_by_mbridge, checkpoint)
    return ranks.call(trainer.open_exporter, socket, MODEL, **options)


def test_replicas_share_the_work(cluster, checkpoints):
    agent = cluster.agent()
    tensors = published_tensors(checkpoints.get("llama"))
    with Ranks(topology_of("dp2")) as ranks:
        opened = start(ranks, checkpoints.get("llama"), agent.socket)
        assert [rank["writes"] for rank in opened] == [True, True]
        copied = [stats.bytes_copied for stats in ranks.call(trainer.publish, 1)]
    total = sum(tensor.nbytes for tensor in tensors.values())
    assert sum(copied) == total and max(copied) < 0.75 * total


def test_the_plan_is_the_dry_runs(cluster, checkpoints):
    checkpoint = checkpoints.get("deepseek_v3")
    with Ranks(topology_of("tp2ep2")) as ranks:
        opened = start(ranks, checkpoint, cluster.agent().socket)
    assert [rank["tensors"] for rank in opened] == [lockstep.tensors_meta(checkpoint / "config.json")] * 2


def is_expert(name: str) -> bool:
    return ".experts." in name


def test_frozen_experts_are_copied_into_each_half_once(cluster, checkpoints):
    checkpoint, tensors = checkpoints.get("qwen3_moe"), published_tensors(checkpoints.get("qwen3_moe"))
    frozen = sum(tensor.nbytes for name, tensor in tensors.items() if is_expert(name))
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with Ranks(topology_of("tp2ep2")) as ranks:
        start(ranks, checkpoint, agent.socket, frozen=is_expert)
        for version in range(1, 5):
            stats = ranks.call(trainer.publish, version)
            assert sum(rank.bytes_frozen for rank in stats) == (frozen if version > 2 else 0)
            receiver.wait_for(tensors)
            assert receiver.model_status()["held"]["version"] == version
            ranks.call(halve, is_expert)
            tensors = {name: tensor if is_expert(name) else tensor / 2 for name, tensor in tensors.items()}


def names_not_frozen_by_requires_grad(rank: Rank, checkpoint) -> "set[str]":
    """Of a model in which no parameter requires a gradient."""
    trainer.build(rank, checkpoint)
    for chunk in rank.chunks:
        chunk.requires_grad_(False)
    description = lockstep.megatron(rank.chunks, rank.hf, frozen="requires_grad").describe()
    return {entry["name"] for entry in description["parameters"] if not entry.get("frozen")}


def test_a_routers_bias_is_not_frozen_by_requires_grad(checkpoints):
    with Ranks(topology_of("tp2pp2")) as ranks:
        left = ranks.call(names_not_frozen_by_requires_grad, checkpoints.get("moonlight"))
    assert set().union(*left) == {f"decoder.layers.{layer}.mlp.router.expert_bias" for layer in range(1, 4)}


def halve(rank: Rank, leave_out) -> None:
    """A change that every rank can make by itself."""
    with torch.no_grad():
        for chunk in rank.chunks:
            for name, tensor in weights(chunk):
                if not leave_out(name):
                    tensor.div_(2)


def widen(rank: Rank) -> None:
    """Keeps the weights in float32, where they are no bf16 numbers."""
    for chunk in rank.chunks:
        for _, tensor in weights(chunk):
            tensor.data = tensor.data.float() * 1.001


def test_float32_weights_are_rounded_as_pytorch_rounds_when_asked_for_and_else_refused(cluster, checkpoints):
    checkpoint = checkpoints.get("llama")
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with Ranks(topology_of("tp2")) as ranks:
        ranks.call(trainer.build, checkpoint)
        ranks.call(trainer.load_by_mbridge, checkpoint)
        ranks.call(widen)
        refused = ranks.call(trainer.refusal, trainer.open_exporter, agent.socket, MODEL)
        assert all(kind == "BadDataError" and "F32" in message and "BF16" in message for kind, message in refused)
        ranks.call(trainer.open_exporter, agent.socket, MODEL, convert=True)
        ranks.call(trainer.publish, 1)
        tensors = published_tensors(checkpoint)
        receiver.wait_for({name: (tensor.float() * 1.001).to(tensor.dtype) for name, tensor in tensors.items()})


def open_by_config(rank: Rank, socket: Path, sizes: "dict[str, int]") -> None:
    config = {"trainer": {"engine": sizes}, "lockstep": {"socket": str(socket), "model": MODEL}}
    rank.exporter = lockstep.ExportConfig.from_dict(config).publisher(rank.chunks, rank.hf)


def test_a_trainers_configuration_is_held_against_megatrons_groups(cluster, checkpoints):
    checkpoint = checkpoints.get("qwen3_moe")
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "expert_parallel_size": 2}
    with Ranks(topology_of("tp2pp2ep2")) as ranks:
        ranks.call(trainer.build, checkpoint)
        ranks.call(trainer.load_by_mbridge, checkpoint)
        wrong = {**sizes, "expert_parallel_size": 1}
        for kind, message in ranks.call(trainer.refusal, open_by_config, agent.socket, wrong):
            assert kind == "BadDataError" and "expert_parallel_size" in message
        ranks.call(open_by_config, agent.socket, sizes)
        ranks.call(trainer.publish, 1)
        receiver.wait_for(published_tensors(checkpoint))


@pytest.mark.parametrize("model", [*EVERYWHERE, *SOMEWHERE])
def test_transformers_loads_the_replica_and_computes_the_same(cluster, checkpoints, tmp_path, model):
    checkpoint = checkpoints.get(model)
    for name in ("config.json", "generation_config.json"):
        shutil.copy(checkpoint / name, tmp_path)
    agent = cluster.agent()
    receiver = cluster.receiver(agent, assets=tmp_path)
    with Ranks(topology_of("tp2")) as ranks:
        start(ranks, checkpoint, agent.socket)
        ranks.call(trainer.publish, 1)
        receiver.wait_for(published_tensors(checkpoint))
    expected = hf_models.logits(checkpoint)
    assert expected.abs().max() > 0.01
    assert torch.equal(hf_models.logits(receiver.published()), expected)
