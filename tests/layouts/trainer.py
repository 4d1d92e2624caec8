"""What the ranks of a trainer do in tests (see ranks.py). A rank keeps `hf`, `chunks` and `exporter`."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mbridge_loader
import torch
from megatron_models import build_chunks, weights
from ranks import Rank
from transformers import AutoConfig

import lockstep


def build(rank: Rank, checkpoint: Path, te_names: bool = False) -> None:
    """Builds this rank's chunks for a checkpoint's configuration, every weight NaN."""
    rank.hf = AutoConfig.from_pretrained(checkpoint)
    rank.te_names = te_names
    rank.chunks = build_chunks(rank.hf, rank.topology, te_names)
    forget(rank)


def forget(rank: Rank) -> None:
    """Every weight NaN: what a loader does not fill shows."""
    with torch.no_grad():
        for chunk in rank.chunks:
            for _, tensor in weights(chunk):
                tensor.fill_(float("nan"))


def load_by_mbridge(rank: Rank, checkpoint: Path) -> None:
    """Fills the chunks through mbridge."""
    mbridge_loader.load(rank.chunks, rank.hf, rank.topology, checkpoint, rank.te_names)


def load_by_lockstep(rank: Rank, checkpoint: Path) -> None:
    """Fills the chunks through lockstep.Importer."""
    lockstep.Importer.from_megatron(rank.chunks, rank.hf).load(checkpoint)


def snapshot(rank: Rank) -> "list[tuple[str, torch.Tensor]]":
    """Copies of all weights, in order."""
    return [(f"{i}.{name}", t.detach().clone()) for i, chunk in enumerate(rank.chunks) for name, t in weights(chunk)]


def open_exporter(rank: Rank, socket: Path, model: str, **options: Any) -> "dict[str, Any]":
    """Opens the exporter, on the agent's host; its plan, run and tensors."""
    options.setdefault("call_timeout", 30)
    rank.exporter = lockstep.Publisher.from_megatron(rank.chunks, rank.hf, socket=socket, model=model, **options)
    return {
        "tensors": rank.exporter.layout,
        "plan": rank.exporter.plan_digest,
        "run": rank.exporter.run,
        "writes": rank.exporter.writes,
    }


def stats_of(exporter: lockstep.Publisher) -> SimpleNamespace:
    """What its last publish did, by name."""
    return SimpleNamespace(**{name.removeprefix("lockstep/"): value for name, value in exporter.stats.items()})


def publish(rank: Rank, version: int) -> SimpleNamespace:
    """Publishes this rank's share."""
    rank.exporter.publish(version=version)
    return stats_of(rank.exporter)


def refusal(rank: Rank, function: Callable[..., Any], *arguments: Any, **options: Any) -> "tuple[str, str]":
    """The class and the sentence of the lockstep.Error that function(rank, ...) raises; ("", "") for none."""
    try:
        function(rank, *arguments, **options)
    except lockstep.Error as error:
        return type(error).__name__, str(error)
    return "", ""
