"""A LoRA adapter of the real PEFT: what a receiver publishes is a directory that PEFT loads, with the trainer's bits."""

import json

import peft
import pytest
import torch
import transformers
from harness import MODEL, wait_until

import lockstep

STEPS = 8


def base_model() -> transformers.Qwen3ForCausalLM:
    """The frozen model; the same bits at every call."""
    config = transformers.Qwen3Config(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
    )
    torch.manual_seed(5)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


class AdapterTrainer:
    """LoRA matrices in fp32 under AdamW over a frozen bf16 model."""

    def __init__(self, rank: int = 8) -> None:
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, task_type="CAUSAL_LM")
        self.model = peft.get_peft_model(base_model(), config)
        self.optimizer = torch.optim.AdamW((p for p in self.model.parameters() if p.requires_grad), lr=1e-2)
        self.random = torch.Generator().manual_seed(6)

    def step(self) -> None:
        tokens = torch.randint(0, 32, (2, 24), generator=self.random)
        self.model(input_ids=tokens, labels=tokens).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def tensors(self) -> "dict[str, torch.Tensor]":
        """A copy of the adapter, under the names that PEFT saves."""
        state = peft.get_peft_model_state_dict(self.model)
        return {name: tensor.detach().clone() for name, tensor in state.items()}

    def attachments(self, directory) -> "dict[str, str]":
        self.model.peft_config["default"].save_pretrained(directory)
        return {"adapter_config.json": (directory / "adapter_config.json").read_text()}

    def logits(self) -> torch.Tensor:
        return logits_of(self.model)


@torch.no_grad()
def logits_of(model) -> torch.Tensor:
    return model.eval()(torch.arange(48)[None] % 32).logits


def loaded_logits(directory) -> torch.Tensor:
    """What an inference process computes that loads `directory` over its own copy of the base."""
    return logits_of(peft.PeftModel.from_pretrained(base_model(), str(directory)))


def file_names(directory) -> "set[str]":
    return {entry.name for entry in directory.iterdir()}


def test_every_step_of_an_adapters_training_loads_in_peft_with_the_trainers_logits(cluster, tmp_path):
    trainer = AdapterTrainer()
    attachments = trainer.attachments(tmp_path)
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with (
        receiver.recorded_syncs() as syncs,
        agent.publisher(trainer.tensors(), attachments=attachments) as publisher,
    ):
        for step in range(1, STEPS + 1):
            trainer.step()
            publisher.publish(version=step, tensors=trainer.tensors())
            receiver.wait_for(trainer.tensors())
            assert torch.equal(loaded_logits(receiver.published()), trainer.logits()), f"step {step}"

    names = trainer.tensors().keys()
    assert len(names) == 2 * 7 * 2  # layers, targets, A and B
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in names
    assert file_names(receiver.published()) == {"adapter_config.json", "adapter_model.safetensors", "lockstep.json"}
    assert (receiver.published() / "adapter_config.json").read_text() == attachments["adapter_config.json"]
    assert [sync["mode"] for sync in syncs] == ["full"] + ["delta"] * (STEPS - 1)
    assert not torch.equal(trainer.logits(), logits_of(base_model())), "the adapter changes nothing"


def test_an_attachment_takes_the_place_of_an_asset_and_other_attachments_are_another_model(cluster, tmp_path):
    assets = tmp_path / "assets"
    assets.mkdir()
    (assets / "adapter_config.json").write_text("stale")
    (assets / "tokenizer.json").write_text("{}")
    agent = cluster.agent()
    receiver = cluster.receiver(agent, assets=assets)
    digests = set()
    for rank in (4, 8):
        trainer = AdapterTrainer(rank)
        with agent.publisher(trainer.tensors(), attachments=trainer.attachments(tmp_path)) as publisher:
            publisher.publish(version=1, tensors=trainer.tensors())
            receiver.wait_for(trainer.tensors())
        config = json.loads((receiver.published() / "adapter_config.json").read_text())
        assert config["r"] == rank
        assert (receiver.published() / "tokenizer.json").is_symlink()
        layout = receiver.ask("layout")
        assert layout["attachments"] == [
            {"name": "adapter_config.json", "bytes": (receiver.published() / "adapter_config.json").stat().st_size}
        ]
        digests.add(layout["digest"])
        assert torch.equal(loaded_logits(receiver.published()), trainer.logits())
    assert len(digests) == 2
    assert (assets / "adapter_config.json").read_text() == "stale"

    full = trainer.model.get_base_model().state_dict()
    with agent.publisher(full) as publisher:
        publisher.publish(version=1, tensors=full)
        wait_until(lambda: (receiver.published() / "model.safetensors").exists(), "a model takes the adapter's place")
    assert not (receiver.published() / "adapter_config.json").exists()  # loaders would look for its weights


def test_an_adapter_that_peft_has_loaded_is_published_without_the_module_that_its_file_names(cluster, tmp_path):
    saved = peft.get_peft_model(base_model(), peft.LoraConfig(r=4, target_modules=["q_proj"]))  # of no task
    saved.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["auto_mapping"]["parent_library"]
    loaded = peft.PeftModel.from_pretrained(base_model(), str(tmp_path), is_trainable=True)
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with lockstep.Publisher.from_adapter(loaded, socket=agent.socket, model=MODEL) as publisher:
        publisher.publish(version=1)
        receiver.wait_for(peft.get_peft_model_state_dict(loaded))
    assert json.loads((receiver.published() / "adapter_config.json").read_text())["auto_mapping"] is None
    assert torch.equal(loaded_logits(receiver.published()), logits_of(loaded))


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
    with agent.publisher(tensors, rank=0, ranks=2, attachments={"notes.txt": "one"}):
        with pytest.raises(lockstep.StateError, match=f"model {MODEL} is being written by another trainer"):
            agent.publisher(tensors, rank=1, ranks=2, attachments={"notes.txt": "two"})
        agent.publisher(tensors, rank=1, ranks=2, attachments={"notes.txt": "one"}).close()
