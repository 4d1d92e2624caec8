"""What vLLM's trainer API refuses by the backend "lockstep". real_vllm has what it sends to a server."""

from pathlib import Path

import pytest
import torch
from engine_program import ask_all
from harness import MODEL
from vllm_process import VllmProgram

_RANKS = 2


@pytest.fixture(scope="module")
def trainers():
    """Two ranks of a trainer."""
    ranks = [VllmProgram("vllm_trainer.py", Path(__file__).resolve().parents[2] / "python") for _ in range(_RANKS)]
    yield ranks
    for rank in ranks:
        rank.close()


@pytest.fixture(scope="module")
def joined(trainers, vllm_checkpoints, tmp_path_factory):
    """They have a model together."""
    store = tmp_path_factory.mktemp("trainers") / "store"
    checkpoint, _ = vllm_checkpoints.get("qwen3")
    for number, rank in enumerate(trainers):
        rank.start("build", checkpoint=checkpoint, rank=number, world=_RANKS, store=store)
    for rank in trainers:
        rank.answer()
    return trainers


def test_a_send_that_no_engine_serves_in_time_says_so_and_asks_no_worker(joined, cluster):
    agent, nobody = cluster.agent(), "http://127.0.0.1:1"
    ask_all(joined, "open", source="iter_local", url=nobody, socket=agent.socket, model=MODEL, timeout=0.2)
    for rank in joined:
        rank.start("send")
    with pytest.raises(AssertionError, match="DeadlineError: not within 0.2 s"):
        joined[0].answer()
    assert joined[1].answer() is None
    ask_all(joined, "close")


@pytest.mark.parametrize(
    "shape, mesh, dims",
    [
        ([7, 4], [3], [0]),
        ([7, 4], [2, 3], [0, 0]),
        ([5, 6], [2, 2], [None, 1]),
        ([6, 5], [2, 2], [1, 0]),
        ([3], [4], [0]),
    ],
)
def test_a_piece_lies_where_torch_chunk_cuts_it(shape, mesh, dims, trainers):
    found = trainers[0].ask("blocks", shape=shape, mesh=mesh, dims=dims)
    assert [same for _, _, same in found] == [True] * torch.Size(mesh).numel()


@pytest.mark.parametrize(
    "source, problem",
    [
        ({}, "the lockstep backend publishes a WeightSource"),
        (
            {"dtype": "bfloat16", "name": "w", "yields": [4, 2]},
            "gives rank 0 torch.bfloat16 [4, 2] of it, and iter_local",
        ),
        ({"dtype": "float32", "name": "w", "yields": [2, 2]}, "iter_local yields torch.float32 [2, 2]"),
        (
            {"dtype": "float32", "name": "v", "yields": [4, 2]},
            'tensor "v": iter_local yields it, and metadata is without',
        ),
        ({"dtype": "float32", "owners": [1]}, 'tensor "w": ranks [1] own it, and rank 0'),
    ],
)
def test_a_source_that_is_not_what_its_metadata_says_is_refused_by_name(source, problem, trainers):
    for refusal in ask_all(trainers, "refusal", **source):
        assert problem in refusal
