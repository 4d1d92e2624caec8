"""What processes of their own do in the tests here, as functions that Ranks (tests/layouts) calls in them: engines, and a
trainer that is killed."""

from pathlib import Path

import torch
from gpu_models import Weights, busy, exporter, follower, module, unlike
from ranks import Rank

import lockstep


def follow(rank: Rank, socket: Path) -> None:
    """Attaches a module of small weights."""
    rank.engine = module(Weights(torch.bfloat16))
    rank.follower = follower(rank.engine, socket)


def served_unlike(rank: Rank, version: int, expected: "dict[str, torch.Tensor]") -> "list[str]":
    """Waits for a version; the tensors in which this process's module differs from it."""
    rank.follower.wait_for(version, timeout=60)
    with rank.follower.serving(timeout=60):
        return unlike(rank.engine.state_dict(), expected)


def read_late(rank: Rank) -> None:
    """Reads the weights that are served by what is queued behind a second of other work, and does not wait for it."""
    with rank.follower.serving(timeout=60):
        busy(1000)
        rank.late = {name: tensor.clone() for name, tensor in rank.engine.state_dict().items()}


def late_unlike(rank: Rank, expected: "dict[str, torch.Tensor]") -> "list[str]":
    """The tensors in which what was read late differs."""
    return unlike(rank.late, expected)


def read_ring(rank: Rank, path: Path) -> None:
    """An engine at the end of a ring."""
    rank.engine = module(Weights(torch.bfloat16))
    rank.reader = lockstep.RingReader(path, lockstep.IntoModule(rank.engine), timeout=60)


def taken_unlike(rank: Rank, version: int, expected: "dict[str, torch.Tensor]") -> "list[str]":
    """Takes a version out of the ring; the tensors in which this process's module differs from it."""
    served = rank.reader.take(timeout=60)
    if served.version != version:
        return [f"version {served.version}"]
    return unlike(rank.engine.state_dict(), expected)


def train(rank: Rank, socket: Path, dtype: torch.dtype) -> None:
    """A trainer that has not published yet."""
    rank.weights = Weights(dtype)
    rank.trainer = exporter(socket, rank.weights)


def publish(rank: Rank, version: int) -> None:
    rank.weights.step()
    rank.trainer.publish(version=version)


def publish_on(rank: Rank, first: int) -> None:
    """One version after another, until the process is killed."""
    version = first
    while True:
        publish(rank, version)
        version += 1
