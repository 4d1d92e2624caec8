"""Attachments: files that a trainer gives with its tensors, as an adapter's configuration. tests/layouts/test_lora.py has PEFT."""

import json

import pytest
import torch
from harness import MODEL, wait_until

import lockstep


def test_an_attachment_takes_the_place_of_an_asset_and_other_attachments_are_another_model(cluster, tmp_path):
    assets = tmp_path / "assets"
    assets.mkdir()
    (assets / "adapter_config.json").write_text("stale")
    (assets / "tokenizer.json").write_text("{}")
    agent = cluster.agent()
    receiver = cluster.receiver(agent, assets=assets)
    digests = set()
    for rank in (4, 8):
        attachment, tensors = json.dumps({"r": rank}), {"lora_A.weight": torch.full((8, 4), rank)}
        with agent.publisher(tensors, attachments={"adapter_config.json": attachment}) as publisher:
            publisher.publish(version=1, tensors=tensors)
            receiver.wait_for(tensors)
        assert (receiver.published() / "adapter_config.json").read_text() == attachment
        assert (receiver.published() / "adapter_model.safetensors").exists()
        assert (receiver.published() / "tokenizer.json").is_symlink()
        layout = receiver.ask("layout")
        assert layout["attachments"] == [{"name": "adapter_config.json", "bytes": len(attachment)}]
        digests.add(layout["digest"])
    assert len(digests) == 2
    assert (assets / "adapter_config.json").read_text() == "stale"

    full = {"weight": torch.ones(4, 4)}
    with agent.publisher(full) as publisher:
        publisher.publish(version=1, tensors=full)
        wait_until(lambda: (receiver.published() / "model.safetensors").exists(), "a model takes the adapter's place")
    assert not (receiver.published() / "adapter_config.json").exists()  # loaders would look for its weights


@pytest.mark.parametrize(
    "attachments, sentence",
    [
        ({"../adapter_config.json": ""}, '"../adapter_config.json": a name is 1 to 128'),
        ({"model.safetensors": ""}, '"model.safetensors": the name is one of weights'),
        ({"adapter_config.json": {"r": 8}}, '"adapter_config.json": its content is not given as a JSON string'),
        ({"notes.txt": "x" * ((1 << 20) + 1)}, '"notes.txt": it has 1048577 bytes; the limit is 1.0 MiB'),
        ({f"{i}.txt": "" for i in range(17)}, "17 attachments are given; the limit is 16"),
    ],
    ids=["path", "weights", "no-text", "long", "many"],
)
def test_attachments_that_break_a_rule_are_refused_by_name(cluster, attachments, sentence):
    agent = cluster.agent()
    with pytest.raises(lockstep.BadDataError) as refusal:
        agent.publisher({"w": torch.zeros(4)}, attachments=attachments)
    assert sentence in str(refusal.value)


def test_ranks_with_different_attachments_are_not_one_trainer(cluster):
    agent = cluster.agent()
    tensors = {"a": torch.zeros(4), "b": torch.zeros(4)}
    with agent.publisher(tensors, rank=0, ranks=2, owns=["a"], attachments={"notes.txt": "one"}):
        with pytest.raises(lockstep.BadDataError, match=f"model {MODEL}: rank 1 gives other attachments"):
            agent.publisher(tensors, rank=1, ranks=2, owns=["b"], attachments={"notes.txt": "two"})
        agent.publisher(tensors, rank=1, ranks=2, owns=["b"], attachments={"notes.txt": "one"}).close()
