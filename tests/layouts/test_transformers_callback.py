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


def train(directory, callback: Publish, trainer=Trainer, **options) -> torch.nn.Module:
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(tiny_config("llama"))
    settings = dict(
        output_dir=str(directory),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    arguments = TrainingArguments(**{**settings, **options})
    trainer(model, arguments, train_dataset=Tokens(), eval_dataset=Tokens(), callbacks=[callback]).train()
    return model


class Judge(Trainer):
    """Finds the model of step `best` the best one."""

    best = 0

    def evaluate(self, *_, **__) -> "dict[str, float]":
        return {"eval_loss": float(self.state.global_step != self.best)}


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


@pytest.mark.parametrize("every, best, versions", [(1, 1, 6), (1, STEPS, 5), (2, 1, 3), (2, 4, 2)])
def test_the_best_checkpoint_that_a_trainer_puts_back_is_published(
    cluster, tmp_path, monkeypatch, every, best, versions
):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    monkeypatch.setattr(Judge, "best", best)
    callback = Publish(model=MODEL, every=every, dtype=torch.bfloat16, socket=agent.socket)
    strategies = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    model = train(tmp_path, callback, Judge, load_best_model_at_end=True, save_only_model=True, **strategies)
    saved = load_file(tmp_path / f"checkpoint-{best}/model.safetensors")
    assert all(torch.equal(saved[name], tensor) for name, tensor in model.state_dict().items())
    receiver.wait_for({name: tensor.bfloat16() for name, tensor in saved.items()})
    assert (callback.publication.label, callback.publication.version) == (str(best), versions)


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
