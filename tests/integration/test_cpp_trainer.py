"""The C++ example: a tensor-parallel trainer over lockstep.hpp. Its ranks say what they hold; here it is put together
by plain NumPy and compared with what a receiver publishes."""

import subprocess

import numpy as np
import pytest
import torch
from harness import BIN

TRAINER = BIN / "export_plugin/example/tensor_parallel_trainer"

LAYERS, HIDDEN, HEADS, GROUPS, HEAD_DIM, FFN, WORDS, PADDED = 2, 64, 8, 4, 8, 96, 200, 256
STEPS = 5


def run_trainer(agent, *arguments) -> subprocess.CompletedProcess:
    command = [TRAINER, "--socket", agent.socket, "--steps", STEPS, *arguments]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120)


class Dump:
    """What one rank held at a step: its parameters back to back, in the order of the trainer's list."""

    def __init__(self, path) -> None:
        self._words = np.fromfile(path, np.uint16)
        self._at = 0

    def take(self, *shape: int) -> np.ndarray:
        elements = int(np.prod(shape))
        self._at += elements
        return self._words[self._at - elements : self._at].reshape(shape)

    def used_up(self) -> bool:
        return self._at == len(self._words)


def whole_model(directory, step: int, ranks: int) -> "dict[str, torch.Tensor]":
    """The HuggingFace tensors of a step, from all ranks' dumps."""
    dumps = [Dump(directory / f"step-{step}-rank-{rank}") for rank in range(ranks)]
    found: "dict[str, np.ndarray]" = {}

    def rows(*shape: int) -> np.ndarray:
        return np.concatenate([dump.take(shape[0] // ranks, *shape[1:]) for dump in dumps])

    def columns(height: int, width: int) -> np.ndarray:
        return np.concatenate([dump.take(height, width // ranks) for dump in dumps], axis=1)

    def replicated(*shape: int) -> np.ndarray:
        copies = [dump.take(*shape) for dump in dumps]
        assert all((copy == copies[0]).all() for copy in copies)
        return copies[0]

    found["model.embed_tokens.weight"] = rows(PADDED, HIDDEN)[:WORDS]
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        found[prefix + "input_layernorm.weight"] = replicated(HIDDEN)
        queries = HEADS // GROUPS * HEAD_DIM
        qkv = rows((HEADS + 2 * GROUPS) * HEAD_DIM, HIDDEN).reshape(GROUPS, queries + 2 * HEAD_DIM, HIDDEN)
        found[prefix + "self_attn.q_proj.weight"] = qkv[:, :queries].reshape(-1, HIDDEN)
        found[prefix + "self_attn.k_proj.weight"] = qkv[:, queries : queries + HEAD_DIM].reshape(-1, HIDDEN)
        found[prefix + "self_attn.v_proj.weight"] = qkv[:, queries + HEAD_DIM :].reshape(-1, HIDDEN)
        found[prefix + "self_attn.o_proj.weight"] = columns(HIDDEN, HEADS * HEAD_DIM)
        found[prefix + "post_attention_layernorm.weight"] = replicated(HIDDEN)
        gate_up = rows(2 * FFN, HIDDEN).reshape(ranks, 2, FFN // ranks, HIDDEN)
        found[prefix + "mlp.gate_proj.weight"] = gate_up[:, 0].reshape(-1, HIDDEN)
        found[prefix + "mlp.up_proj.weight"] = gate_up[:, 1].reshape(-1, HIDDEN)
        found[prefix + "mlp.down_proj.weight"] = columns(HIDDEN, FFN)
    found["model.norm.weight"] = replicated(HIDDEN)
    found["lm_head.weight"] = rows(PADDED, HIDDEN)[:WORDS]
    assert all(dump.used_up() for dump in dumps)
    return {name: torch.from_numpy(words.view(np.int16).copy()).view(torch.bfloat16) for name, words in found.items()}


@pytest.mark.parametrize("ranks, remote", [(1, 0), (2, 0), (2, 1), (4, 0), (4, 3)])
def test_a_receiver_holds_what_the_ranks_of_a_cpp_trainer_held(cluster, tmp_path, ranks, remote):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    result = run_trainer(agent, "--ranks", ranks, "--remote", remote, "--dump", tmp_path)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == ranks * STEPS
    last = whole_model(tmp_path, STEPS, ranks)
    receiver.wait_for(last)
    sent = sum(int(line.split(" sent ")[1].split()[0]) for line in lines if " step 5:" in line)
    copied = sum(int(line.split("copied ")[1].split()[0]) for line in lines if " step 5:" in line)
    assert (sent > 0) == (remote > 0)
    assert copied + sent == sum(2 * tensor.numel() for tensor in last.values())


def test_a_cpp_trainer_without_an_agent_says_so_and_ends(tmp_path):
    command = [str(TRAINER), "--socket", str(tmp_path / "nobody"), "--ranks", "2"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "rank 0: " in result.stderr and str(tmp_path / "nobody") in result.stderr
