"""Real FSDP2 models in training, published by lockstep.Publisher: a receiver holds, at every step, exactly the file that
transformers saves of the model that PyTorch gathers."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsdp_trainer as trainer
import pytest
import torch
from causal_models import small_model
from fsdp_trainer import Layout
from harness import MODEL
from ranks import Rank, Ranks
from replicas import tensors_hash
from topologies import Topology
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy
from torch.distributed.tensor import Shard, distribute_tensor
from trainer import refusal
from transformers import AutoModelForCausalLM

import lockstep

# No size is divided by 3, and few by 2; blocks are small, so that every tensor has several and shares some.
UNEVEN = {
    "vocab_size": 125,
    "hidden_size": 20,
    "intermediate_size": 98,
    "head_dim": 10,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
}
MODELS = {
    "qwen3": ("qwen3", UNEVEN),
    "llama": ("llama", UNEVEN),
    "qwen3-tied": ("qwen3", {**UNEVEN, "tie_word_embeddings": True}),
    "qwen3_moe": ("qwen3_moe", {**UNEVEN, "num_experts": 5, "moe_intermediate_size": 7}),
    "moonlight": ("moonlight", {"num_hidden_layers": 2}),
}
BF16_SUMS = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}


def is_norm(name: str) -> bool:
    return "norm" in name


def is_head(name: str) -> bool:
    return name.startswith("lm_head")


def is_not_head(name: str) -> bool:
    return not is_head(name)


@dataclass(frozen=True)
class Case:
    """A model, how it is spread, and what its trainer does."""

    model: str
    layout: Layout
    eval_forward: "int | None" = None  # how many copies of parameters a forward alone leaves; None: there is none
    remote: "tuple[int, ...]" = ()
    same_batch: bool = False

    @property
    def world(self) -> int:
        return torch.Size(self.layout.mesh).numel()


CASES = {
    "qwen3-2": Case("qwen3", Layout((2,)), eval_forward=3),
    "qwen3-3": Case("qwen3", Layout((3,)), eval_forward=3),
    "tied-2": Case("qwen3-tied", Layout((2,)), eval_forward=2),
    "tied-3": Case("qwen3-tied", Layout((3,))),
    "moe-2": Case("qwen3_moe", Layout((2,)), eval_forward=3),
    "moe-3": Case("qwen3_moe", Layout((3,))),
    "more-ranks-than-experts": Case("qwen3_moe", Layout((6,))),
    "router-bias-buffers": Case("moonlight", Layout((2,))),
    "resharded": Case("qwen3", Layout((2,), options={"reshard_after_forward": True}), eval_forward=0),
    "not-resharded": Case("qwen3", Layout((2,), options={"reshard_after_forward": False}), eval_forward=25),
    "resharded-in-part": Case("qwen3", Layout((4,), options={"reshard_after_forward": 2}), eval_forward=25),
    "stale-after-backward": Case("qwen3", Layout((2,), reshard_after_backward=False)),
    "cpu-offload": Case("qwen3", Layout((2,), options={"offload_policy": CPUOffloadPolicy(pin_memory=False)})),
    "hsdp": Case("qwen3", Layout((2, 2), ("replicate", "shard"))),
    "fsdp-tp": Case("llama", Layout((2, 2), ("shard", "tensor")), eval_forward=3),
    "whole-norms": Case("qwen3", Layout((2,), ignored=is_norm), same_batch=True),
    "wrapped": Case("qwen3_moe", Layout((2,), wrapped=True)),
    "float32": Case("qwen3_moe", Layout((2,), dtype=torch.float32)),
    "mixed-precision": Case("qwen3", Layout((3,), dtype=torch.float32, options=BF16_SUMS), eval_forward=3),
    "remote": Case("qwen3_moe", Layout((2,)), remote=(1,)),
    "remote-writer": Case("qwen3", Layout((3,)), remote=(0, 2)),
}


@pytest.fixture(scope="module")
def daemons(module_cluster):
    """One agent and one receiver for all cases; each is a model of its own name."""
    agent = module_cluster.agent(block_bytes=4096)
    return agent, module_cluster.receiver(agent, models=list(CASES))


def checkpoint_of(checkpoints, model: str, seed: int = 1) -> Path:
    family, sizes = MODELS[model]
    return checkpoints.get(family, seed=seed, **sizes)


def start(ranks: Ranks, checkpoint: Path, layout: Layout, socket: Path, model: str, **options: Any) -> "list[dict]":
    """A trainer with the checkpoint's weights and an open exporter."""
    ranks.call(trainer.build, checkpoint, layout)
    opened = ranks.call(trainer.open_exporter, socket, model, **options)
    assert len({rank["plan"] for rank in opened}) == 1
    return opened


def total_bytes(tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def step(rank: Rank, case: Case) -> "int | None":
    """A training step, and an evaluation if there is one; how many gathered copies that leaves."""
    trainer.train(rank, case.same_batch)
    return None if case.eval_forward is None else len(trainer.evaluate(rank))


@pytest.mark.parametrize("name", CASES)
def test_a_receiver_holds_every_step_as_transformers_saves_it(daemons, checkpoints, name):
    case = CASES[name]
    agent, receiver = daemons
    with Ranks(Topology(dp=case.world)) as ranks:
        start(ranks, checkpoint_of(checkpoints, case.model), case.layout, agent.socket, name, remote=case.remote)
        hashes = set()
        for version in range(1, 5):
            assert ranks.call(step, case) == [case.eval_forward] * case.world
            stats = ranks.call(trainer.publish, version)
            tensors = ranks.call(trainer.saved)[0]
            receiver.wait_for(tensors, model=name)
            assert receiver.model_status(name)["held"]["version"] == version
            assert_moved_once(stats, tensors, case.remote)
            hashes.add(tensors_hash(tensors))
    assert len(hashes) == 4, "the optimizer changes nothing"


def assert_moved_once(stats, tensors, remote: "tuple[int, ...]") -> None:
    """Each element was copied, or sent, by exactly one rank, whatever replicas there are."""
    sent = sum(rank.bytes_sent for rank in stats)
    assert sum(rank.bytes_copied for rank in stats) + sent == total_bytes(tensors)
    assert sent == sum(rank.bytes_received for rank in stats)
    assert (sent > 0) == bool(remote)
    for number in remote:
        assert stats[number].bytes_copied == 0


def test_transformers_loads_the_replica_and_computes_what_the_trainer_computes(cluster, checkpoints, tmp_path):
    checkpoint = checkpoint_of(checkpoints, "qwen3_moe")
    shutil.copy(checkpoint / "config.json", tmp_path)
    agent = cluster.agent()
    receiver = cluster.receiver(agent, assets=tmp_path)
    with Ranks(Topology(dp=2)) as ranks:
        start(ranks, checkpoint, Layout((2,)), agent.socket, MODEL)
        ranks.call(trainer.train)
        ranks.call(trainer.publish, 1)
        expected = ranks.call(logits)[0]
        receiver.wait_for(ranks.call(trainer.saved)[0])
    options = {"dtype": torch.bfloat16, "experts_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(receiver.published(), **options).eval()
    with torch.no_grad():
        assert torch.equal(model(input_ids=torch.arange(12)[None]).logits, expected)
    assert expected.abs().max() > 0.01


@torch.no_grad()
def logits(rank: Rank) -> torch.Tensor:
    return rank.model.eval()(input_ids=torch.arange(12)[None]).logits


# ---- float32 parameters ----------------------------------------------------------------------------------------------


def fill_with_any_bits(rank: Rank) -> None:
    """Every kind of float32 in every parameter: random bits, and the numbers where rounding turns."""
    generator = torch.Generator().manual_seed(rank.number)
    ties, extremes = [0x00008000, 0x3F808000, 0x3F818000], [0x00000001, 0x007FFFFF, 0x7F7FFFFF, 0x7F800000, 0x7F800001]
    edges = torch.tensor(ties + extremes)
    for parameter in rank.model.parameters():
        local = parameter.detach().to_local().view(torch.int32)
        bits = torch.randint(-(1 << 31), 1 << 31, local.shape, generator=generator)
        local.copy_(torch.where(bits % 3 == 0, edges[bits % 8], bits))


def with_quiet_nans(tensor: torch.Tensor) -> torch.Tensor:
    """NaNs as Lockstep rounds them; PyTorch's differ from one kind of processor to the other."""
    return torch.where(tensor.isnan(), torch.tensor(0x7FC0, dtype=torch.int16).view(torch.bfloat16), tensor)


def test_any_float32_is_rounded_as_pytorch_rounds(cluster, checkpoints):
    agent = cluster.agent(block_bytes=4096)
    receiver = cluster.receiver(agent)
    layout = Layout((2,), dtype=torch.float32)
    with Ranks(Topology(dp=2)) as ranks:
        start(ranks, checkpoint_of(checkpoints, "qwen3"), layout, agent.socket, MODEL)
        ranks.call(fill_with_any_bits)
        ranks.call(trainer.publish, 1)
        tensors = ranks.call(trainer.saved)[0]
        receiver.wait_for({name: with_quiet_nans(tensor) for name, tensor in tensors.items()})
    numbers = torch.cat([tensor.flatten() for tensor in tensors.values()])
    assert numbers.isnan().any() and numbers.isinf().any() and ((numbers != 0) & (numbers.abs() < 1e-38)).any()


def test_float32_parameters_stay_float32_unless_asked_for(cluster, checkpoints):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with Ranks(Topology(dp=2)) as ranks:
        layout = Layout((2,), dtype=torch.float32)
        start(ranks, checkpoint_of(checkpoints, "qwen3"), layout, agent.socket, MODEL, dtype=None)
        ranks.call(fill_with_any_bits)
        ranks.call(trainer.publish, 1)
        receiver.wait_for(ranks.call(whole_parameters)[0])


def whole_parameters(rank: Rank) -> "dict[str, torch.Tensor]":
    return {name: trainer.gathered(parameter) for name, parameter in rank.model.named_parameters()}


# ---- frozen parameters -----------------------------------------------------------------------------------------------


def unread_blocks(agent, version: int) -> int:
    """How many blocks of a version the agent took from the version before, unread."""
    events = [json.loads(line) for line in agent.log().splitlines() if '"version_committed"' in line]
    return next(event["unread_blocks"] for event in events if event["version"] == version)


FROZEN = {
    "predicate": is_not_head,
    "requires_grad": "requires_grad",
    "names": ["model.embed_tokens.weight", "model.layers.0.mlp.down_proj.weight", "model.norm.weight"],
}


@pytest.mark.parametrize("kind", FROZEN)
def test_frozen_parameters_are_copied_into_each_half_once_and_not_diffed_again(cluster, checkpoints, kind):
    frozen = FROZEN[kind]
    agent = cluster.agent(block_bytes=4096)
    receiver = cluster.receiver(agent)
    with Ranks(Topology(dp=2)) as ranks:
        ranks.call(trainer.build, checkpoint_of(checkpoints, "qwen3"), Layout((2,)), trained=is_head)
        ranks.call(trainer.open_exporter, agent.socket, MODEL, frozen=frozen)
        for version in range(1, 5):
            ranks.call(trainer.train)
            stats = ranks.call(trainer.publish, version)
            tensors = ranks.call(trainer.saved)[0]
            receiver.wait_for(tensors)
            assert receiver.model_status()["held"]["version"] == version
            still = {n: t for n, t in tensors.items() if (n in frozen if kind == "names" else is_not_head(n))}
            assert sum(rank.bytes_frozen for rank in stats) == (total_bytes(still) if version > 2 else 0)
            assert sum(rank.bytes_copied + rank.bytes_frozen for rank in stats) == total_bytes(tensors)
            assert (unread_blocks(agent, version) > 0) == (version > 2)
        assert_changes_of_frozen_parameters_go_unseen(ranks, receiver, tensors, frozen)


def test_a_buffer_is_not_frozen_by_requires_grad(cluster):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    model = small_model("deepseek_v3").requires_grad_(False)
    model.lm_head.requires_grad_(True)
    bias = model.get_buffer("model.layers.3.mlp.gate.e_score_correction_bias")
    options = {"frozen": "requires_grad", "socket": agent.socket, "model": MODEL}
    with lockstep.Publisher.from_module(model, **options) as publisher:
        for version in range(1, 5):
            bias.add_(version > 2)  # of what changes before, the library says so
            publisher.publish(version=version)
            receiver.wait_for(lockstep.saved_tensors(model))
        assert publisher.stats["lockstep/bytes_frozen"] > 0


def test_a_frozen_name_that_no_rank_has_is_refused_with_the_nearest(cluster, checkpoints):
    agent = cluster.agent()
    with Ranks(Topology(dp=2)) as ranks:
        ranks.call(trainer.build, checkpoint_of(checkpoints, "qwen3"), Layout((2,)))
        frozen = ["model.norm.weight", "lm_head.wieght"]
        for kind, text in ranks.call(refusal, trainer.open_exporter, agent.socket, MODEL, frozen=frozen):
            assert kind == "BadDataError"
            assert 'frozen: no rank has a tensor "lm_head.wieght"; did you mean "lm_head.weight"?' in text


def assert_changes_of_frozen_parameters_go_unseen(ranks: Ranks, receiver, before, frozen) -> None:
    """What is frozen is taken on trust, and not looked at."""
    ranks.call(double, "model.embed_tokens.weight")
    ranks.call(double, "lm_head.weight")
    ranks.call(trainer.publish, 5)
    receiver.wait_for({**before, "lm_head.weight": before["lm_head.weight"] * 2})


def double(rank: Rank, name: str) -> None:
    with torch.no_grad():
        rank.sharded[name].mul_(2)


# ---- parameters that are replaced ------------------------------------------------------------------------------------


def move_parameters(rank: Rank) -> int:
    """Every parameter into other memory, with other values; how many moved."""
    before = {name: p.to_local().data_ptr() for name, p in rank.sharded.items()}
    state = {name: (tensor.detach() * 2).clone() for name, tensor in rank.model.state_dict().items()}
    rank.model.load_state_dict(state, assign=True)
    return sum(p.to_local().data_ptr() != before[name] for name, p in rank.model.named_parameters())


def test_parameters_may_move_between_publishes(cluster, checkpoints):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with Ranks(Topology(dp=2)) as ranks:
        start(ranks, checkpoint_of(checkpoints, "qwen3"), Layout((2,)), agent.socket, MODEL)
        ranks.call(trainer.publish, 1)
        first = ranks.call(trainer.saved)[0]
        receiver.wait_for(first)
        assert ranks.call(move_parameters) == [25, 25]
        ranks.call(trainer.publish, 2)
        receiver.wait_for({name: tensor * 2 for name, tensor in first.items()})


def resize_head(rank: Rank, rows: int) -> None:
    head = torch.zeros(rows, 20, dtype=torch.bfloat16)
    mesh = rank.sharded["lm_head.weight"].device_mesh
    rank.model.lm_head.weight = torch.nn.Parameter(distribute_tensor(head, mesh, [Shard(0)]))


def test_a_shard_of_another_shape_is_refused_by_name_and_the_version_is_no_ones(cluster, checkpoints):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with Ranks(Topology(dp=2)) as ranks:
        start(ranks, checkpoint_of(checkpoints, "qwen3"), Layout((2,)), agent.socket, MODEL)
        ranks.call(trainer.publish, 1)
        ranks.call(resize_head, 126)  # 63 rows on both ranks, where the second had 62
        (first, _), (kind, message) = ranks.call(refusal, trainer.publish, 2)
        assert first in ("", "AbortedError")  # rank 0 may have given its share before the other failed
        assert kind == "BadDataError" and '"lm_head.weight", BF16 [63, 20]' in message and "[62, 20]" in message
        ranks.call(resize_head, 125)
        ranks.call(trainer.publish, 3)
        receiver.wait_for(ranks.call(trainer.saved)[0])
        assert receiver.model_status()["held"]["version"] == 3
        assert agent.model_status()["newest_version"] == 3
