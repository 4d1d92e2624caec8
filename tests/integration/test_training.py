"""The main job with real PyTorch: a Qwen3 language model learns real text and a replica follows every step."""

import pydoc_data.topics

import pytest
import safetensors.torch
import torch
import transformers

import lockstep

STEPS = 24
BATCH = 4
CONTEXT = 96


@pytest.fixture(scope="module")
def text() -> torch.Tensor:
    """The Python language's own documentation, as bytes."""
    return torch.tensor(list("\n".join(pydoc_data.topics.topics.values()).encode())[:400_000])


def small_qwen3(tie: bool, dtype: torch.dtype) -> transformers.Qwen3ForCausalLM:
    config = transformers.Qwen3Config(
        vocab_size=256,
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=256,
        tie_word_embeddings=tie,
    )
    torch.manual_seed(2)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)


class Trainer:
    """fp32 master weights under AdamW, and the bf16 model made from them that is published."""

    def __init__(self, tie: bool) -> None:
        self.masters = small_qwen3(tie, torch.float32)
        self.served = small_qwen3(tie, torch.bfloat16).eval()
        self.optimizer = torch.optim.AdamW(self.masters.parameters(), lr=1e-4)
        self.random = torch.Generator().manual_seed(3)

    def step(self, text: torch.Tensor) -> float:
        starts = torch.randint(0, len(text) - CONTEXT, (BATCH,), generator=self.random)
        tokens = torch.stack([text[start : start + CONTEXT] for start in starts])
        loss = self.masters(input_ids=tokens, labels=tokens).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for served, master in zip(self.served.parameters(), self.masters.parameters()):
                served.copy_(master)
        return loss.item()

    def weights(self) -> "dict[str, torch.Tensor]":
        """Tied weights once, as checkpoints have them."""
        return lockstep.without_ties(self.served.state_dict())


def assert_same_tensors(path, expected) -> None:
    loaded = safetensors.torch.load_file(path)
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape, name
        assert torch.equal(loaded[name].view(torch.int16), tensor.view(torch.int16)), name


@pytest.mark.parametrize("tie", [True, False], ids=["tied", "untied"])
def test_every_step_of_a_training_run_arrives_bit_for_bit_and_loads_as_the_trainers_model(cluster, tmp_path, text, tie):
    trainer = Trainer(tie)
    trainer.masters.config.save_pretrained(tmp_path)
    agent = cluster.agent()
    receiver = cluster.receiver(agent, assets=tmp_path)
    losses = []
    with receiver.recorded_syncs() as syncs, agent.publisher(trainer.weights()) as publisher:
        for step in range(1, STEPS + 1):
            losses.append(trainer.step(text))
            publisher.publish(version=step, tensors=trainer.weights())
            receiver.wait_for(trainer.weights())
            assert_same_tensors(receiver.file(), trainer.weights())

    assert losses[-1] < losses[0] - 0.5, f"nothing was learned: {losses}"
    assert [sync["mode"] for sync in syncs] == ["full"] + ["delta"] * (STEPS - 1)
    assert all(sync["verified"] for sync in syncs)

    loaded = transformers.AutoModelForCausalLM.from_pretrained(receiver.published(), dtype=torch.bfloat16).eval()
    tokens = text[None, :CONTEXT]
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, trainer.served(tokens).logits)
