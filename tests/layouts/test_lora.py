"""Adapters of the real PEFT on a base that FSDP2 shards: what a receiver publishes loads with the trainer's bits."""

import json
import tempfile
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from harness import MODEL
from ranks import Rank, Ranks
from safetensors.torch import load_file
from topologies import Topology
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from trainer import refusal
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

import lockstep

STEPS = 4
SIZES = {
    "vocab_size": 33,
    "hidden_size": 20,
    "intermediate_size": 26,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 10,
    "max_position_embeddings": 64,
}
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS: "dict[str, dict[str, Any]]" = {
    "lora": {"r": 3, "lora_alpha": 5, "target_modules": LINEARS},  # 3 rows over 2 ranks
    "rslora": {"r": 2, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "use_rslora": True},
    "dora": {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "down_proj"], "use_dora": True},
    "rank-1": {"r": 1, "lora_alpha": 2, "target_modules": ["o_proj"]},  # a rank without any row of A
    "modules-to-save": {"r": 2, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "biases": {"r": 2, "target_modules": ["q_proj"], "lora_bias": True},
    "fused-experts": {"r": 2, "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]},
}
NAMES = {
    "lora": "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight",
    "rslora": "base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight",
    "dora": "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector",
    "rank-1": "base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight",
    "modules-to-save": "base_model.model.lm_head.weight",
    "biases": "base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias",
    "fused-experts": "base_model.model.model.layers.0.mlp.experts.base_layer.lora_A.weight",
}


def base_model(kind: str) -> Any:
    """The frozen model; the same bits at every call."""
    torch.manual_seed(5)
    if kind == "fused-experts":
        experts = {"num_experts": 3, "moe_intermediate_size": 8, "num_experts_per_tok": 2}
        config = Qwen3MoeConfig(**SIZES, **experts, experts_implementation="eager")
        return Qwen3MoeForCausalLM(config)
    return Qwen3ForCausalLM(Qwen3Config(**SIZES))


def adapted(kind: str) -> peft.PeftModel:
    torch.manual_seed(6)
    target = {"target_modules": [], **ADAPTERS[kind]}
    return peft.get_peft_model(base_model(kind), peft.LoraConfig(task_type="CAUSAL_LM", **target))


@torch.no_grad()
def logits_of(model: Any) -> torch.Tensor:
    return model.eval()(input_ids=torch.arange(24)[None]).logits.clone()


def build(rank: Rank, kind: str) -> None:
    """The same adapter twice: sharded, to be trained, and whole, for PEFT to save."""
    rank.kind = kind
    rank.plain = adapted(kind)
    rank.model = adapted(kind)
    mesh = init_device_mesh("cpu", (rank.topology.world,))
    for layer in rank.model.base_model.model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(rank.model, mesh=mesh)
    rank.optimizer = torch.optim.AdamW([p for p in rank.model.parameters() if p.requires_grad], lr=0.02)
    rank.steps = 0


def open_exporter(rank: Rank, socket: Path, **options: Any) -> None:
    rank.exporter = lockstep.Publisher.from_adapter(rank.model, socket=socket, model=MODEL, **options)


def train_and_publish(rank: Rank, version: int) -> "tuple[dict[str, torch.Tensor], str, torch.Tensor] | None":
    """A step on a batch of this rank's own, and a publish; on rank 0 what PEFT saves, and the model's logits."""
    generator = torch.Generator().manual_seed(100 * version + rank.number)
    tokens = torch.randint(0, SIZES["vocab_size"], (2, 9), generator=generator)
    rank.model.train()(input_ids=tokens, labels=tokens).loss.backward()
    rank.optimizer.step()
    rank.optimizer.zero_grad()
    rank.model.eval()
    logits = logits_of(rank.model)
    rank.exporter.publish(version=version)
    saved = save_gathered(rank)
    return (*saved, logits) if rank.number == 0 else None


def save_gathered(rank: Rank) -> "tuple[dict[str, torch.Tensor], str]":
    """(tensors, config) as PEFT's save_pretrained writes them, once PyTorch has gathered the model."""
    state = rank.model.state_dict()
    whole = {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in state.items()}
    rank.plain.load_state_dict(whole)
    with tempfile.TemporaryDirectory() as directory:
        rank.plain.save_pretrained(directory)
        config = (Path(directory) / "adapter_config.json").read_text()
        return load_file(Path(directory) / "adapter_model.safetensors"), config


@pytest.mark.parametrize("kind", ADAPTERS)
def test_every_step_of_a_sharded_adapters_training_loads_in_peft(cluster, kind):
    agent = cluster.agent(block_bytes=4096)
    receiver = cluster.receiver(agent)
    with Ranks(Topology(dp=2)) as ranks:
        ranks.call(build, kind)
        ranks.call(open_exporter, agent.socket)
        for version in range(1, STEPS + 1):
            saved, config, logits = ranks.call(train_and_publish, version)[0]
            receiver.wait_for(saved)
            assert_same_config((receiver.published() / "adapter_config.json").read_text(), config)
            loaded = peft.PeftModel.from_pretrained(base_model(kind), str(receiver.published()))
            assert torch.equal(logits_of(loaded), logits), f"step {version}"
    assert NAMES[kind] in saved
    assert {entry.name for entry in receiver.published().iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "lockstep.json",
    }
    assert not torch.equal(logits, logits_of(base_model(kind))), "the adapter changes nothing"


def assert_same_config(found: str, saved: str) -> None:
    """The file that PEFT writes, but for the order of what it keeps as sets."""

    def without_order(text: str) -> "dict[str, Any]":
        return {k: sorted(v) if isinstance(v, list) else v for k, v in json.loads(text).items()}

    assert without_order(found) == without_order(saved)
    assert json.loads(found)["inference_mode"] is True


def test_an_adapter_is_rounded_when_asked_for(cluster):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with Ranks(Topology(dp=2)) as ranks:
        ranks.call(build, "dora")
        ranks.call(open_exporter, agent.socket, dtype=torch.bfloat16)
        saved, _, _ = ranks.call(train_and_publish, 1)[0]
        receiver.wait_for({name: tensor.to(torch.bfloat16) for name, tensor in saved.items()})


def test_an_adapter_that_peft_has_loaded_is_published_without_the_module_that_its_file_names(cluster, tmp_path):
    saved = peft.get_peft_model(base_model("lora"), peft.LoraConfig(r=4, target_modules=["q_proj"]))  # of no task
    saved.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["auto_mapping"]["parent_library"]
    loaded = peft.PeftModel.from_pretrained(base_model("lora"), str(tmp_path), is_trainable=True)
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with lockstep.Publisher.from_adapter(loaded, socket=agent.socket, model=MODEL) as publisher:
        publisher.publish(version=1)
        receiver.wait_for(peft.get_peft_model_state_dict(loaded))
    assert json.loads((receiver.published() / "adapter_config.json").read_text())["auto_mapping"] is None
    again = peft.PeftModel.from_pretrained(base_model("lora"), str(receiver.published()))
    assert torch.equal(logits_of(again), logits_of(loaded))


def test_an_adapter_that_the_model_lacks_is_named(cluster):
    with Ranks(Topology(dp=2)) as ranks:
        ranks.call(build, "lora")
        for kind, message in ranks.call(refusal, open_exporter, "/nowhere", adapter="other"):
            assert kind == "BadDataError" and '"other"' in message and "default" in message
