"""transformers' own Trainer with lockstep.integrations.transformers, in one process and in ranks under DDP."""

import os

import pytest
import torch
from harness import MODEL
from hf_models import tiny_config
from ranks import Ranks
from safetensors.torch import load_file
from torch.distributed.elastic.utils.distributed import get_free_port
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

import lockstep
from lockstep.integrations.transformers import Publish

STEPS, EVERY = 5, 2


class Tokens(torch.utils.data.Dataset):
    """Random ones, the same for every process."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> "dict[str, torch.Tensor]":
        tokens = torch.randint(100, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def train(directory, callback: Publish) -> torch.nn.Module:
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(tiny_config("llama"))
    arguments = TrainingArguments(
        output_dir=str(directory),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    Trainer(model, arguments, train_dataset=Tokens(), callbacks=[callback]).train()
    return model


def train_as_rank(rank, directory, socket, port: int) -> "tuple[int, int]":
    place = {"RANK": rank.number, "WORLD_SIZE": 2, "LOCAL_RANK": rank.number, "MASTER_PORT": port}
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        **{name: str(value) for name, value in place.items()},
    }  # as torchrun does
    callback = Publish(model=MODEL, every=EVERY, dtype=torch.bfloat16, socket=socket)
    model = train(directory / str(rank.number), callback)
    if rank.number == 0:
        model.bfloat16().save_pretrained(directory / "saved")
    return callback.publication.version, callback.publication.bytes


def test_a_trainer_publishes_every_so_many_steps_and_its_end(cluster, tmp_path):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    callback = Publish(model=MODEL, every=EVERY, dtype=torch.bfloat16, receivers=1, timeout=60, socket=agent.socket)
    train(tmp_path, callback).bfloat16().save_pretrained(tmp_path)
    assert (callback.publication.version, callback.publication.label) == (3, str(STEPS))  # steps 2, 4 and 5
    assert receiver.model_status()["held"]["version"] == 3
    receiver.wait_for(load_file(tmp_path / "model.safetensors"))


def test_replicas_under_ddp_share_the_copying(cluster, tmp_path):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with Ranks(2, timeout_s=120) as ranks:
        outcomes = ranks.call(train_as_rank, tmp_path, agent.socket, get_free_port())
    assert [version for version, _ in outcomes] == [3, 3]
    assert sum(copied for _, copied in outcomes) == agent.model_status()["model_bytes"]  # each tensor once
    receiver.wait_for(load_file(tmp_path / "saved/model.safetensors"))


def test_an_argument_that_cannot_be_is_refused(tmp_path):
    with pytest.raises(lockstep.BadDataError, match="every is 0"):
        Publish(model=MODEL, every=0)
