"""AReaL's own FSDP engine publishes from two ranks. Run by tests/frameworks.sh, which installs AReaL; pytest finds this file
only when it is named."""

import os
from pathlib import Path

import fsdp_trainer
import pytest
import torch
import torch.distributed as dist
import trainer
from areal.api import FinetuneSpec, WeightUpdateMeta
from areal.api.cli_args import OptimizerConfig
from harness import MODEL
from hf_models import published_tensors
from ranks import Rank, Ranks
from tokenizers import Tokenizer, models
from topologies import Topology
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from lockstep.integrations.areal import Publishes, Settings


class Rollouts:
    """In place of AReaL's client of SGLang and vLLM servers: what the trainer asks of it."""

    def __init__(self) -> None:
        self.asked: "list[str]" = []

    def pause_generation(self) -> None:
        self.asked.append("pause")

    def continue_generation(self) -> None:
        self.asked.append("continue")


def build(rank: Rank, checkpoint: Path, mode: str, settings: Settings) -> None:
    os.environ.update(RANK=str(rank.number), LOCAL_RANK=str(rank.number), WORLD_SIZE=str(dist.get_world_size()))
    engine_class = type("Actor", (Publishes,), {"lockstep": settings})
    rank.engine = engine_class.from_pretrained(
        str(checkpoint), "experiment", "trial", dp_size=dist.get_world_size(), attn_impl="eager"
    )
    rank.engine.optimizer_config = OptimizerConfig(type="adam", lr=0.01)
    rank.engine.create_process_group()
    rank.engine.initialize(None, FinetuneSpec(total_train_epochs=1, dataset_size=100, train_batch_size=2))
    rank.rollouts, rank.meta = Rollouts(), WeightUpdateMeta(type=mode)
    rank.engine.connect_engine(rank.rollouts, rank.meta)
    rank.layout = fsdp_trainer.Layout((2,), dtype=torch.float32)
    rank.plain = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    rank.model, rank.optimizer, rank.batch, rank.steps = rank.engine.model, rank.engine.optimizer, rank.number, 0


def update(rank: Rank, version: int) -> None:
    rank.engine.update_weights(rank.meta.with_version(version))


def asked(rank: Rank) -> "list[str]":
    return rank.rollouts.asked


def with_tokenizer(checkpoint: Path) -> Path:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="b", pad_token="b").save_pretrained(checkpoint)
    return checkpoint


@pytest.mark.parametrize("mode", ("xccl", "disk"))
@pytest.mark.parametrize("model", ("llama", "qwen2"))  # qwen2's head is tied
def test_a_receiver_holds_what_transformers_saves_of_areals_engine_after_each_update(cluster, checkpoints, model, mode):
    agent = cluster.agent()
    receiver, checkpoint = cluster.receiver(agent), with_tokenizer(checkpoints.get(model))
    with Ranks(Topology(dp=2)) as ranks:
        ranks.call(build, checkpoint, mode, Settings(socket=str(agent.socket), receivers=1, model=MODEL, timeout=60))
        ranks.call(update, 1)
        assert ranks.call(asked) == [["pause", "continue"], []]
        assert receiver.model_status()["held_label"] == "1"
        receiver.wait_for(published_tensors(checkpoint))
        for version in (2, 3):
            ranks.call(fsdp_trainer.train)
            ranks.call(update, version)
            receiver.wait_for(ranks.call(fsdp_trainer.saved)[0])


def test_generation_stays_stopped_where_receivers_do_not_serve_a_version_and_the_error_names_them(cluster, checkpoints):
    agent, checkpoint = cluster.agent(), with_tokenizer(checkpoints.get("llama"))
    settings = Settings(socket=str(agent.socket), model=MODEL, receivers=["missing"], timeout=0.1)
    with Ranks(Topology(dp=1)) as ranks:
        ranks.call(build, checkpoint, "disk", settings)
        ((error, text),) = ranks.call(trainer.refusal, update, 1)
        assert error == "DeadlineError" and '"missing" is not known here' in text
        assert ranks.call(asked) == [["pause"]]
