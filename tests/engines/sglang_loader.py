"""A program: loads checkpoints as ranks of SGLang do, and says what they end up with (json_program.py)."""

from pathlib import Path

import index_values
import torch
from json_program import answer_requests
from safetensors.torch import load_file, save_file
from sglang_model import Model, Rank, tensors_of

from lockstep.engine._recorder import TensorForm, record


def load(checkpoint: str, tensor: "list[int]", expert_shares: int, fused: bool, output: str) -> None:
    """Saves what SGLang's loader fills, under SGLang's names, for a rank of these (size, rank)."""
    save_file(_loaded(checkpoint, tensor, expert_shares, fused).parameters(), output)


def differences(checkpoint: str, tensor: "list[int]", expert_shares: int, fused: bool) -> "list[str]":
    """Where carrying out a recording of SGLang's loader gives other bits than the loader."""
    model = _loaded(checkpoint, tensor, expert_shares, fused)
    weights = load_file(Path(checkpoint) / "model.safetensors")
    forms = [TensorForm(name, own.dtype, tuple(own.shape)) for name, own in weights.items()]
    twin = model.twin()
    with model.current():
        # The first load makes tensors beside the parameters, and the next ones fill them.
        twin.load_weights((form.name, torch.empty(form.shape, dtype=form.dtype, device="meta")) for form in forms)
        recording = record(tensors_of(twin), twin.load_weights, forms)
        return index_values.differences(recording, model.module.load_weights, tensors_of(model.module), forms)


def _loaded(checkpoint: str, tensor: "list[int]", expert_shares: int, fused: bool) -> Model:
    rank = Rank(tuple(tensor), expert_shares)
    model = Model(Path(checkpoint), rank, disable_shared_experts_fusion=not fused)
    model.load(Path(checkpoint))
    return model


if __name__ == "__main__":
    answer_requests(load, differences)
