"""Real frameworks' models, which ranks publish by the frameworks' own means. Run by tests/frameworks.sh, which installs
the frameworks; pytest finds this file only when it is named."""

import os
from collections.abc import Iterator
from pathlib import Path

import deepspeed
import fsdp_trainer
import pytest
import torch
import torch.distributed as dist
import trainer
from harness import MODEL
from hf_models import published_tensors
from ranks import Rank, Ranks
from topologies import Topology
from transformers import AutoModelForCausalLM
from verl_cpu import use_cpu

import lockstep

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled; Gloo does the same

ZERO_3 = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},  # every parameter is partitioned
}


def build_zero_3(rank: Rank, checkpoint: Path) -> None:
    os.environ.update(RANK=str(rank.number), LOCAL_RANK=str(rank.number), WORLD_SIZE=str(dist.get_world_size()))
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    rank.engine = deepspeed.initialize(model=model, optimizer=optimizer, config=ZERO_3, dist_init_required=False)[0]


def train(rank: Rank) -> None:
    tokens = torch.arange(7)[None] + rank.number
    rank.engine.backward(rank.engine(input_ids=tokens, labels=tokens).loss)
    rank.engine.step()


def gathered(rank: Rank) -> "Iterator[tuple[str, torch.Tensor]]":
    for name, parameter in rank.engine.module.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            yield name, parameter


def open_publisher(rank: Rank, socket: Path, checkpoint: "Path | None", writers: int) -> None:
    rank.publisher = lockstep.Publisher.from_stream(
        checkpoint or gathered(rank), model=MODEL, socket=socket, rank=rank.number, writers=writers, call_timeout=30
    )


def publish(rank: Rank, version: int) -> None:
    rank.publisher.publish(version=version, tensors=gathered(rank))


def consolidated(rank: Rank) -> "dict[str, torch.Tensor] | None":
    """What save_16bit_model writes; on rank 0."""
    return rank.engine._zero3_consolidated_16bit_state_dict()


def open_exporter(rank: Rank) -> None:
    lockstep.Publisher.from_fsdp(rank.engine.module, socket="/nowhere", model=MODEL)


@pytest.fixture
def zero_3(checkpoints):
    """Two ranks of a model under ZeRO-3."""
    with Ranks(Topology(dp=2)) as ranks:
        ranks.call(build_zero_3, checkpoints.get("llama"))
        yield ranks


@pytest.mark.parametrize("writers", (1, 2))
@pytest.mark.parametrize("first_pass", (False, True), ids=("headers", "first pass"))
def test_a_receiver_holds_what_deepspeed_saves_in_training(cluster, checkpoints, zero_3, first_pass, writers):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    zero_3.call(open_publisher, agent.socket, None if first_pass else checkpoints.get("llama"), writers)
    before = None
    for version in (1, 2):
        zero_3.call(train)
        zero_3.call(publish, version)
        saved = zero_3.call(consolidated)[0]
        assert before is None or any(not torch.equal(before[name], tensor) for name, tensor in saved.items())
        receiver.wait_for(saved)
        before = saved


def test_parameters_that_zero_3_emptied_are_refused_by_name(zero_3):
    for error, text in zero_3.call(trainer.refusal, open_exporter):
        assert (
            error == "BadDataError" and 'tensor "model.embed_tokens.weight": DeepSpeed ZeRO-3 has partitioned' in text
        )


def build_verl(rank: Rank, checkpoint: Path) -> None:
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    use_cpu()
    rank.engine = FSDPEngineWithLMHead(
        HFModelConfig(
            path=str(checkpoint),
            load_tokenizer=False,
            use_remove_padding=False,
            enable_gradient_checkpointing=False,
            override_config={"attn_implementation": "eager"},
        ),
        FSDPEngineConfig(strategy="fsdp2", use_torch_compile=False),
        FSDPOptimizerConfig(lr=0.01, total_training_steps=10),
        CheckpointConfig(),
    )
    rank.engine.initialize()
    rank.layout = fsdp_trainer.Layout((2,), dtype=torch.float32)
    rank.plain = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    rank.model, rank.optimizer, rank.batch, rank.steps = rank.engine.module, rank.engine.optimizer, rank.number, 0


def open_verl_publisher(rank: Rank, socket: Path, checkpoint: Path) -> None:
    rank.publisher = lockstep.Publisher.from_stream(
        checkpoint, model=MODEL, socket=socket, rank=rank.number, dtype=torch.bfloat16, call_timeout=30
    )


def publish_verl(rank: Rank, version: int) -> None:
    rank.publisher.publish(version=version, tensors=rank.engine.get_per_tensor_param()[0])


@pytest.mark.parametrize("model", ("llama", "qwen2", "qwen3_moe"))  # qwen2's head is tied
def test_a_receiver_holds_what_transformers_saves_of_verls_engine(cluster, checkpoints, model):
    agent = cluster.agent()
    receiver, checkpoint = cluster.receiver(agent), checkpoints.get(model)
    with Ranks(Topology(dp=2)) as ranks:
        ranks.call(build_verl, checkpoint)
        ranks.call(open_verl_publisher, agent.socket, checkpoint)
        ranks.call(publish_verl, 1)
        receiver.wait_for(published_tensors(checkpoint))
        ranks.call(fsdp_trainer.train)
        ranks.call(publish_verl, 2)
        receiver.wait_for(ranks.call(fsdp_trainer.saved)[0])
