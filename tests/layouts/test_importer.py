"""lockstep.Importer fills a Megatron model with what mbridge, which owes it nothing, fills it with."""

import pytest
import torch
import trainer
from cases import CASES
from hf_models import published_tensors
from ranks import Rank, Ranks
from safetensors.torch import save_file
from topologies import DENSE

import lockstep


def import_both_ways(rank: Rank, checkpoint, te_names: bool) -> "list[str]":
    """The weights in which the two loaders differ, on this rank."""
    trainer.build(rank, checkpoint, te_names)
    trainer.load_by_lockstep(rank, checkpoint)
    found = trainer.snapshot(rank)
    trainer.forget(rank)
    trainer.load_by_mbridge(rank, checkpoint)
    expected = trainer.snapshot(rank)
    assert len(found) == len(expected) > 0
    return [
        f"{name} {list(ours.shape)}"
        for (name, theirs), (_, ours) in zip(expected, found)
        if ours.dtype != theirs.dtype or not torch.equal(ours, theirs)
    ]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_loaders_fill_every_weight_alike(checkpoints, case):
    with Ranks(case.topology) as ranks:
        differences = ranks.call(import_both_ways, checkpoints.get(case.model), case.te_names)
    assert differences == [[]] * case.topology.world


def test_a_checkpoint_whose_files_are_links_is_loaded(checkpoints, tmp_path):
    """As huggingface_hub keeps them: snapshots of links to blobs."""
    expected = published_tensors(checkpoints.get("llama"))
    snapshot, blobs = tmp_path / "snapshots/main", tmp_path / "blobs"
    for directory in (snapshot, blobs):
        directory.mkdir(parents=True)
    save_file(expected, blobs / "weights")
    (snapshot / "model.safetensors").symlink_to("../../blobs/weights")
    filled = {name: torch.empty_like(tensor) for name, tensor in expected.items()}
    lockstep.Importer.from_named_tensors(filled).load(snapshot)
    assert [name for name, tensor in expected.items() if not torch.equal(filled[name], tensor)] == []


def embedding_rows(rank: Rank, checkpoint) -> "torch.Tensor":
    trainer.build(rank, checkpoint)
    trainer.load_by_lockstep(rank, checkpoint)
    return rank.chunks[0].embedding.word_embeddings.weight.detach()


def test_rows_of_the_padded_vocabulary_become_zero(checkpoints):
    checkpoint = checkpoints.get("llama")
    expected = published_tensors(checkpoint)["model.embed_tokens.weight"]
    with Ranks(DENSE["tp4"]) as ranks:
        rows = torch.cat(ranks.call(embedding_rows, checkpoint))
    assert rows.shape[0] == 128 and expected.shape[0] == 125
    assert torch.equal(rows[:125], expected)
    assert torch.equal(rows[125:], torch.zeros(3, rows.shape[1], dtype=torch.bfloat16))
