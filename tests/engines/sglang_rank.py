"""A program: one rank of SGLang that the plugin follows with (json_program.py). Asked by test_sglang_in_place.py."""

import contextlib
import os
from pathlib import Path

import torch
from json_program import answer_requests
from sglang_model import Model, Rank

from lockstep.engine import sglang
from lockstep.engine._parameters import tensors_of


class Scheduler:
    """As much of SGLang's as there is without a GPU."""

    def __init__(self) -> None:
        self._model: "Model | None" = None
        self._addresses: "dict[str, int]" = {}
        self._current = contextlib.ExitStack()

    def follow(self, checkpoint: str, tensor: "list[int]", environment: "dict[str, str]") -> str:
        """Loads a checkpoint, and follows; the incarnation."""
        os.environ.update(environment)
        self._model = self._loaded(checkpoint, Rank(tuple(tensor)))
        self._current.enter_context(self._model.current())
        self._addresses = {name: own.data_ptr() for name, own in tensors_of(self._model.module).items()}
        return sglang.follow(self._model.module).incarnation

    def differences(self, version: int, checkpoint: str, tensor: "list[int]") -> "list[str]":
        """Waits for a version. Tensors that moved, or are not bit for bit what SGLang's loader makes of the version's checkpoint."""
        sglang.follow(None).wait_for(version, 60)
        held = tensors_of(self._model.module)
        wanted = tensors_of(self._loaded(checkpoint, Rank(tuple(tensor))).module)
        moved = [name for name, own in held.items() if own.data_ptr() != self._addresses.get(name)]
        return [*(held.keys() ^ wanted.keys()), *moved, *(name for name in wanted if not _same(held, wanted, name))]

    def names(self) -> "list[str]":
        """Of all tensors."""
        return list(tensors_of(self._model.module))

    def leave(self) -> None:
        """Follows no more."""
        sglang.follow(None).close()
        sglang._follower = None
        self._current.close()

    def _loaded(self, checkpoint: str, rank: Rank) -> Model:
        model = Model(Path(checkpoint), rank)
        model.load(Path(checkpoint))
        return model


def _same(one: "dict[str, torch.Tensor]", other: "dict[str, torch.Tensor]", name: str) -> bool:
    return name in one and one[name].dtype == other[name].dtype and torch.equal(one[name], other[name])


if __name__ == "__main__":
    scheduler = Scheduler()
    answer_requests(scheduler.follow, scheduler.differences, scheduler.names, scheduler.leave)
