"""A tiny transformers model that is really trained, published, and kept as checkpoints to compare with."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from hf_models import tiny_config, write_checkpoint
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import lockstep

# Of consecutive steps: deltas of few changed elements, of many, and of nearly all.
_LEARNING_RATES = (1e-5, 1e-4, 1e-3)


class Trainer:
    """A model with AdamW on float32 masters.

    Args:
        model: a name of hf_models.MODELS; ``overrides`` change its configuration.
        directory: where checkpoints go.
        socket, name: the agent's socket and the model's name there.
        dtype: in which it is published.
        learning_rates: of consecutive steps.
    """

    def __init__(
        self,
        model: str,
        directory: Path,
        socket: Path,
        name: str,
        dtype: torch.dtype = torch.bfloat16,
        learning_rates: "Sequence[float]" = _LEARNING_RATES,
        **overrides: Any,
    ) -> None:
        self._dtype, self._learning_rates = dtype, learning_rates
        self.config = tiny_config(model, **overrides)
        self.directory = directory
        write_checkpoint(directory / "start", self.config, seed=1)
        self.model = AutoModelForCausalLM.from_pretrained(
            directory / "start", dtype=torch.float32, experts_implementation="eager"
        ).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.exporter = lockstep.Publisher.from_fsdp(
            self.model, dtype=dtype, socket=socket, model=name, call_timeout=30
        )
        self.steps = 0

    def step(self) -> None:
        """One optimizer step on a batch of its own."""
        self.steps += 1
        generator = torch.Generator().manual_seed(self.steps)
        tokens = torch.randint(0, self.config.vocab_size, (2, 9), generator=generator)
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rates[self.steps % len(self._learning_rates)]
        self.model(input_ids=tokens, labels=tokens).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def publish(self, version: int, label: "str | None" = None) -> Path:
        """Publishes the weights, and keeps them as transformers saves them; that directory."""
        self.exporter.publish(label, version=version)
        return self.save(version)

    def save(self, version: int) -> Path:
        """A checkpoint in the published dtype, as transformers writes it."""
        rounded = copy.deepcopy(self.model)
        for parameter in rounded.parameters():
            parameter.data = parameter.data.to(self._dtype)
        path = self.directory / f"v{version}"
        rounded.save_pretrained(path)
        return path

    def close(self) -> None:
        """Ends the exporter."""
        self.exporter.close()


def checkpoint_tensors(directory: Path) -> "dict[str, torch.Tensor]":
    """A checkpoint's tensors by their HuggingFace names."""
    return load_file(directory / "model.safetensors")
