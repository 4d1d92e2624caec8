"""A model of several parts: parameters with Megatron's names, modules under FSDP2, plain tensors; out and in again.

The Megatron part is no Megatron model: it is cut here, by hand, from the whole tensors, for two tensor-parallel ranks.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness import MODEL
from ranks import Rank, Ranks
from safetensors.torch import save_file
from topologies import Topology
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from trainer import refusal, stats_of

import lockstep

LAYERS, HIDDEN, HEADS, GROUPS, HEAD_DIM, FEED_FORWARD, WORDS, PADDED_WORDS = 2, 8, 4, 2, 2, 6, 10, 12
CONFIG = {
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": LAYERS,
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "head_dim": HEAD_DIM,
    "intermediate_size": FEED_FORWARD,
    "vocab_size": WORDS,
    "tie_word_embeddings": False,
}
Tensors = dict[str, torch.Tensor]


def llama() -> Tensors:
    """The whole language model, under HuggingFace's names."""
    generator = torch.Generator().manual_seed(2)
    shapes = {"model.embed_tokens": (WORDS, HIDDEN), "model.norm": (HIDDEN,), "lm_head": (WORDS, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "self_attn.q_proj"] = (HEADS * HEAD_DIM, HIDDEN)
        shapes[prefix + "self_attn.k_proj"] = shapes[prefix + "self_attn.v_proj"] = (GROUPS * HEAD_DIM, HIDDEN)
        shapes[prefix + "self_attn.o_proj"] = (HIDDEN, HEADS * HEAD_DIM)
        shapes[prefix + "mlp.gate_proj"] = shapes[prefix + "mlp.up_proj"] = (FEED_FORWARD, HIDDEN)
        shapes[prefix + "mlp.down_proj"] = (HIDDEN, FEED_FORWARD)
        shapes[prefix + "input_layernorm"] = shapes[prefix + "post_attention_layernorm"] = (HIDDEN,)
    return {f"{name}.weight": torch.randn(s, generator=generator).bfloat16() for name, s in shapes.items()}


def megatron_shards(whole: Tensors, rank: int) -> Tensors:
    """What one of two tensor-parallel ranks holds, under Megatron's names."""

    def rows(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.chunk(2, 0)[rank]

    def columns(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.chunk(2, 1)[rank].contiguous()

    def words(name: str) -> torch.Tensor:
        padding = torch.zeros(PADDED_WORDS - WORDS, HIDDEN, dtype=torch.bfloat16)
        return rows(torch.cat([whole[name], padding])).clone()

    shards = {"embedding.word_embeddings.weight": words("model.embed_tokens.weight")}
    for layer in range(LAYERS):
        hf, own = f"model.layers.{layer}.", f"decoder.layers.{layer}."
        q, k, v = (whole[f"{hf}self_attn.{name}_proj.weight"].chunk(GROUPS, 0) for name in "qkv")
        gate, up = (whole[f"{hf}mlp.{name}_proj.weight"] for name in ("gate", "up"))
        shards[own + "input_layernorm.weight"] = whole[hf + "input_layernorm.weight"].clone()
        shards[own + "self_attention.linear_qkv.weight"] = torch.cat([q[rank], k[rank], v[rank]])
        shards[own + "self_attention.linear_proj.weight"] = columns(whole[hf + "self_attn.o_proj.weight"])
        shards[own + "pre_mlp_layernorm.weight"] = whole[hf + "post_attention_layernorm.weight"].clone()
        shards[own + "mlp.linear_fc1.weight"] = torch.cat([rows(gate), rows(up)])
        shards[own + "mlp.linear_fc2.weight"] = columns(whole[hf + "mlp.down_proj.weight"])
    shards["decoder.final_layernorm.weight"] = whole["model.norm.weight"].clone()
    shards["output_layer.weight"] = words("lm_head.weight")
    return shards


def module_of(tensors: Tensors) -> nn.Module:
    """A tree of modules with these parameters; Megatron's layers know their numbers."""
    root = nn.Module()
    for name, tensor in tensors.items():
        *path, leaf = name.split(".")
        module = root
        for part in path:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        module.register_parameter(leaf, nn.Parameter(tensor))
    for number, layer in root.decoder.layers.named_children():
        layer.layer_number = int(number) + 1
    return root


class Vision(nn.Module):
    """A part that FSDP2 shards, in sizes that nothing divides."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.vision = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3), nn.BatchNorm1d(3))


def build(rank: Rank) -> None:
    """Three parts: `language` by hand, `tower` by fully_shard, `others` plain and DTensors."""
    mesh = init_device_mesh("cpu", (2,))
    rank.language = module_of(megatron_shards(llama(), rank.number))
    rank.tower = Vision()
    fully_shard(rank.tower, mesh=mesh)
    column = torch.arange(15.0, dtype=torch.float64).view(5, 3)
    rank.others = {
        "scale": torch.tensor(0.5),
        "table": distribute_tensor(column, mesh, [Shard(1)]),
        "both": distribute_tensor(column.half(), mesh, [Replicate()]),
        "router.bias": torch.arange(3, dtype=torch.int64),
    }


def place(rank: Rank) -> "dict[str, int]":
    """What Megatron's process groups would give; they are not asked."""
    return {
        "tensor_rank": rank.number,
        "tensor_size": 2,
        "pipeline_rank": 0,
        "expert_rank": 0,
        "expert_size": 1,
        "expert_tensor_rank": rank.number,
        "expert_tensor_size": 2,
    }


def parts_of(rank: Rank) -> "list[lockstep.Part]":
    return [
        lockstep.megatron(rank.language, CONFIG, place=place(rank)),
        lockstep.fsdp(rank.tower),
        lockstep.named_tensors(rank.others, frozen=["router.bias"]),
    ]


def tensors_of(rank: Rank) -> "list[torch.Tensor]":
    """This rank's memory of all parts."""
    tower = [*rank.tower.parameters(), *rank.tower.buffers()]
    tensors = [*rank.language.parameters(), *tower, *rank.others.values()]
    return [t.detach().to_local() if isinstance(t, DTensor) else t.detach() for t in tensors]


def whole_model(rank: Rank) -> Tensors:
    """What the parts are together: the language model times what it was scaled by, the rest gathered by PyTorch."""
    scale = rank.language.decoder.final_layernorm.weight[0] / llama()["model.norm.weight"][0]
    language = {name: tensor * scale for name, tensor in llama().items()}
    rest = {**rank.tower.state_dict(), **rank.others}
    gathered = {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in rest.items()}
    return {name: tensor.detach().clone() for name, tensor in {**language, **gathered}.items()}


def open_exporter(rank: Rank, socket: Path, remote: "tuple[int, ...]" = (), **options: Any) -> "list[str]":
    on_agents_host = rank.number not in remote
    rank.exporter = lockstep.Publisher.from_parts(
        parts_of(rank), socket=socket, model=MODEL, on_agent_host=on_agents_host, **options
    )
    return [meta.name for meta, _ in rank.exporter.layout]


def publish(rank: Rank, version: int) -> "tuple[Tensors, SimpleNamespace]":
    rank.exporter.publish(version=version)
    return whole_model(rank), stats_of(rank.exporter)


def double(rank: Rank) -> None:
    """A change that every rank can make by itself, exactly."""
    for tensor in tensors_of(rank):
        if tensor.dtype != torch.int64:
            tensor.mul_(2)


@pytest.mark.parametrize("remote", [(), (1,)], ids=["local", "remote"])
def test_parts_of_every_kind_are_one_model(cluster, remote):
    agent = cluster.agent(block_bytes=4096)
    receiver = cluster.receiver(agent)
    with Ranks(Topology(dp=2)) as ranks:
        ranks.call(build)
        order, same = ranks.call(open_exporter, agent.socket, remote)
        assert order == same
        for version in range(1, 5):
            (tensors, *_), (_, second) = answers = ranks.call(publish, version)
            receiver.wait_for(tensors)
            assert receiver.model_status()["held"]["version"] == version
            frozen = sum(stats.bytes_frozen for _, stats in answers)
            moved = sum(stats.bytes_copied + stats.bytes_sent for _, stats in answers)
            assert frozen == (tensors["router.bias"].nbytes if version > 2 else 0)
            assert moved + frozen == sum(tensor.nbytes for tensor in tensors.values())
            assert (second.bytes_sent > 0) == bool(remote)
            ranks.call(double)
    assert set(order) == set(tensors)


# ---- and in again ----------------------------------------------------------------------------------------------------


def forget_and_load(rank: Rank, directory: Path) -> "list[int]":
    """Loads everything again; which of the rank's tensors are not what they were."""
    before = [tensor.clone() for tensor in tensors_of(rank)]
    for tensor in tensors_of(rank):
        tensor.fill_(77)
    lockstep.Importer(parts_of(rank)).load(directory)
    return [i for i, (now, old) in enumerate(zip(tensors_of(rank), before)) if not torch.equal(now, old)]


def test_all_parts_are_filled_from_what_a_receiver_published(cluster):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with Ranks(Topology(dp=2)) as ranks:
        ranks.call(build)
        ranks.call(open_exporter, agent.socket)
        receiver.wait_for(ranks.call(publish, 1)[0][0])
        assert ranks.call(forget_and_load, receiver.published()) == [[], []]


def load_named(rank: Rank, directory: Path) -> "list[torch.Tensor]":
    mesh = init_device_mesh("cpu", (2,))
    tensors = {
        "w": distribute_tensor(torch.zeros(5, 3), mesh, [Shard(0)]),
        "whole": torch.zeros(2, 2, dtype=torch.int32),
    }
    lockstep.Importer.from_named_tensors(tensors, dtype=torch.bfloat16).load(directory)
    return [t.full_tensor() if isinstance(t, DTensor) else t for t in tensors.values()]


def test_named_tensors_are_filled_in_place(tmp_path):
    w, whole = torch.randn(5, 3).bfloat16(), torch.arange(4, dtype=torch.int32).view(2, 2)
    save_file({"w": w, "whole": whole, "unused": torch.zeros(1)}, tmp_path / "model.safetensors")
    with Ranks(Topology(dp=2)) as ranks:
        for found in ranks.call(load_named, tmp_path):
            assert torch.equal(found[0], w.float()) and torch.equal(found[1], whole)


# ---- parts that are no model together --------------------------------------------------------------------------------


def open_with(rank: Rank, socket: Path, kind: str) -> None:
    build(rank)
    parts = parts_of(rank)
    if kind == "name of Megatron's":
        parts.append(lockstep.named_tensors({"model.norm.weight": torch.zeros(HIDDEN)}))
    elif kind == "name of FSDP2's":
        parts.append(lockstep.named_tensors({"vision.0.bias": torch.zeros(5)}))
    elif kind == "order":
        parts = parts if rank.number == 0 else parts[::-1]
    elif kind == "dtype":
        parts.append(lockstep.named_tensors({"odd": torch.zeros(2, dtype=(torch.half, torch.float)[rank.number])}))
    elif kind == "no rank":
        mesh = init_device_mesh("cpu", (2,))
        piece = DTensor.from_local(torch.zeros(2, 2), mesh, [Shard(0)], run_check=False)
        parts.append(lockstep.named_tensors({"half": piece} if rank.number == 0 else {}))
    lockstep.Publisher.from_parts(parts, socket=socket, model=MODEL)


@pytest.mark.parametrize(
    "kind, words",
    [
        ("name of Megatron's", ["model.norm.weight"]),
        ("name of FSDP2's", ["vision.0.bias"]),
        ("order", ["part"]),
        ("dtype", ["odd", "F16", "F32"]),
        ("no rank", ["half"]),
    ],
)
def test_parts_that_do_not_make_one_model_are_refused_by_name(cluster, kind, words):
    agent = cluster.agent()
    with Ranks(Topology(dp=2)) as ranks:
        outcomes = ranks.call(refusal, open_with, agent.socket, kind)
    for error, message in outcomes:
        assert error == "BadDataError" and all(word in message for word in words), message
    assert agent.ask("status")["models"] == []
