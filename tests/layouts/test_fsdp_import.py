"""lockstep.Importer fills a sharded transformers model with exactly the checkpoint that transformers reads."""

import shutil
from pathlib import Path

import fsdp_trainer as trainer
import pytest
import torch
from fsdp_trainer import Layout, gathered
from ranks import Rank, Ranks
from safetensors.torch import load_file, save_file
from test_fsdp import checkpoint_of, is_norm
from topologies import Topology
from transformers import AutoModelForCausalLM

import lockstep

LAYOUTS = {
    "qwen3-3": ("qwen3", Layout((3,))),
    "tied-2": ("qwen3-tied", Layout((2,))),
    "moe-3": ("qwen3_moe", Layout((3,))),
    "more-ranks-than-experts": ("qwen3_moe", Layout((6,))),
    "router-bias-buffers": ("moonlight", Layout((2,))),
    "float32-masters": ("qwen3_moe", Layout((3,), dtype=torch.float32)),
    "not-resharded": ("qwen3", Layout((2,), options={"reshard_after_forward": False})),
    "hsdp": ("qwen3", Layout((2, 2), ("replicate", "shard"))),
    "fsdp-tp": ("llama", Layout((2, 2), ("shard", "tensor"))),
    "whole-norms": ("qwen3", Layout((2,), ignored=is_norm)),
    "wrapped": ("qwen3_moe", Layout((2,), wrapped=True)),
}


def load_and_compare(rank: Rank, built: Path, directory: Path, layout: Layout) -> "list[str]":
    """Builds the model, forgets its weights, loads others: in which tensors it differs from what transformers loads."""
    trainer.build(rank, built, layout)
    trainer.evaluate(rank)
    for tensor in [*rank.sharded.values(), *dict(saved_buffers(rank.model)).values()]:
        tensor.detach().fill_(77)
    lockstep.Importer.from_fsdp(rank.model, dtype=torch.bfloat16 if layout.rounds else None).load(directory)
    expected = AutoModelForCausalLM.from_pretrained(directory, dtype=layout.dtype)
    expected_tensors = dict([*expected.named_parameters(), *saved_buffers(expected)])
    found = dict([*rank.sharded.items(), *saved_buffers(rank.model)])
    found = {name.replace("_checkpoint_wrapped_module.", ""): tensor for name, tensor in found.items()}
    assert found.keys() == expected_tensors.keys()
    whole = {name: gathered(tensor) for name, tensor in found.items()}
    return [name for name, tensor in expected_tensors.items() if not torch.equal(whole[name], tensor.detach())]


def saved_buffers(model) -> "list[tuple[str, torch.Tensor]]":
    return [(name, buffer) for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")]


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_shard_is_filled_from_the_checkpoint(checkpoints, name):
    model, layout = LAYOUTS[name]
    built, other = (checkpoint_of(checkpoints, model, seed=seed) for seed in (1, 2))
    with Ranks(Topology(dp=torch.Size(layout.mesh).numel())) as ranks:
        differences = ranks.call(load_and_compare, built, other, layout)
    assert differences == [[]] * len(differences)


def import_broken(rank: Rank, checkpoint: Path, broken: Path) -> "tuple[str, bool]":
    """The importer's error, and whether it left every weight alone."""
    trainer.build(rank, checkpoint, Layout((2,)))
    before = [tensor.to_local().clone() for tensor in rank.sharded.values()]
    with pytest.raises(lockstep.BadDataError) as raised:
        lockstep.Importer.from_fsdp(rank.model).load(broken)
    return str(raised.value), all(torch.equal(t.to_local(), old) for t, old in zip(rank.sharded.values(), before))


@pytest.mark.parametrize("fault", ["missing", "shape", "dtype"])
def test_a_checkpoint_that_does_not_fit_is_refused_by_the_tensors_name_and_nothing_is_written(
    checkpoints, tmp_path, fault
):
    checkpoint, name = checkpoint_of(checkpoints, "qwen3_moe"), "model.layers.1.self_attn.q_proj.weight"
    tensors = load_file(checkpoint_of(checkpoints, "qwen3_moe", seed=2) / "model.safetensors")
    if fault == "missing":
        del tensors[name]
    elif fault == "shape":
        tensors[name] = tensors[name][:-1].contiguous()
    else:
        tensors[name] = tensors[name].to(torch.float16)
    shutil.copy(checkpoint / "config.json", tmp_path)
    save_file(tensors, tmp_path / "model.safetensors")
    with Ranks(Topology(dp=2)) as ranks:
        for message, untouched in ranks.call(import_broken, checkpoint, tmp_path):
            assert name in message and untouched
