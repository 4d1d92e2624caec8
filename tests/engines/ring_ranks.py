"""A trainer and engines around a bucket ring, as functions that Ranks run in processes of their own."""

import os
import signal
from pathlib import Path
from typing import Any

import torch
from ranks import Rank
from safetensors.torch import load_file
from tiny_trainer import Trainer
from transformers import AutoModelForCausalLM

import lockstep


def train(rank: Rank, family: str, directory: Path, agent: Path, ring: Path, bucket_bytes: int) -> int:
    """A trainer with a ring; its process."""
    rank.trainer = Trainer(family, directory, agent, "actor")
    rank.ring = lockstep.BucketRing(rank.trainer.exporter, socket=ring, bucket_bytes=bucket_bytes, timeout=60)
    return os.getpid()


def send(rank: Rank, version: int) -> Path:
    """A training step, its version into the ring; the checkpoint that transformers makes of it."""
    rank.trainer.step()
    checkpoint = rank.trainer.save(version)
    rank.ring.send(version)
    return checkpoint


def failing_send(rank: Rank, version: int) -> "tuple[str, str]":
    """The class and text of the error that sending raises."""
    try:
        send(rank, version)
    except lockstep.Error as error:
        return type(error).__name__, str(error)
    raise AssertionError(f"version {version} was sent")


class DeadlyInto(lockstep.IntoModule):
    """Kills a process in the middle of a version: when a part is taken, and further ones are to come."""

    victim = 0
    after = 0

    def take(self, pieces: Any) -> None:
        super().take(pieces)
        self.after -= 1
        if self.after == 0:
            os.kill(self.victim, signal.SIGKILL)


class FailingInto(lockstep.IntoModule):
    """Raises in the middle of the first version."""

    takes = 0

    def take(self, pieces: Any) -> None:
        self.takes += 1
        if self.takes == 3:
            raise ValueError("the engine ran out of something")
        super().take(pieces)


def engine(rank: Rank, config: Any, ring: Path, into: type = lockstep.IntoModule) -> None:
    """An engine. The weights in its module differ from the trainer's."""
    torch.manual_seed(99)
    rank.module = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for parameter in rank.module.parameters():  # buffers stay in float32, as the trainer has them
        parameter.data = parameter.data.to(torch.bfloat16)
    rank.into = into(rank.module)
    rank.reader = lockstep.RingReader(ring, rank.into, timeout=60)


def loading_engine(rank: Rank, ring: Path) -> None:
    """An engine that is given whole tensors."""
    rank.loaded = {}

    def load(tensors: Any) -> None:
        for name, tensor in tensors:
            assert name not in rank.loaded, name
            rank.loaded[name] = tensor.clone()

    rank.reader = lockstep.RingReader(ring, lockstep.IntoLoader(load), timeout=60)


def arm(rank: Rank, victim: int, after: int) -> None:
    rank.into.victim, rank.into.after = victim or os.getpid(), after


def take(rank: Rank) -> "tuple[int, str | None]":
    """The next version: its number, and what the reader reports of errors."""
    served = rank.reader.take(timeout=60)
    assert rank.reader.served == served
    return served.version, rank.reader.error


def failing_take(rank: Rank) -> "tuple[str, str, Any, str | None]":
    """Class and text of the error that taking raises; what the reader reports as served, and of errors."""
    try:
        rank.reader.take(timeout=60)
    except Exception as error:
        return type(error).__name__, str(error), rank.reader.served, rank.reader.error
    raise AssertionError("a version was taken")


def loaded(rank: Rank) -> "dict[str, torch.Tensor]":
    taken, rank.loaded = rank.loaded, {}
    return taken


def saved(rank: Rank, directory: Path) -> Path:
    """The engine's module as transformers saves it."""
    rank.module.save_pretrained(directory)
    return directory


def difference(one: "Path | dict[str, torch.Tensor]", other: Path) -> "str | None":
    """The first tensor in which two checkpoints differ, bit for bit."""
    first = load_file(one / "model.safetensors") if isinstance(one, Path) else one
    second = load_file(other / "model.safetensors")
    if first.keys() != second.keys():
        return str(first.keys() ^ second.keys())
    for name, tensor in first.items():
        same = tensor.dtype == second[name].dtype and tensor.shape == second[name].shape
        if not (same and torch.equal(tensor.view(torch.uint8), second[name].view(torch.uint8))):
            return name
    return None
