"""A tiny transformers model under FSDP2 on every rank, and what its ranks do in tests (see ranks.py).

A rank keeps `model`, `plain` (the same model unsharded, for transformers to save), `sharded` (its parameters by name),
`optimizer` and `exporter`.
"""

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from ranks import Rank
from safetensors.torch import load_file
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from trainer import stats_of
from transformers import AutoModelForCausalLM

import lockstep

_TENSOR_PLAN: "dict[str, Any]" = {
    **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
    "self_attn.o_proj": RowwiseParallel(),
    **{f"mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")},
    "mlp.down_proj": RowwiseParallel(),
}


@dataclass(frozen=True)
class Layout:
    """How a model is spread, and fully_shard's arguments.

    Args:
        mesh: extents of ``names``, which are of "replicate", "shard" and "tensor", in this order.
        dtype: of the parameters that are trained.
        ignored: (names of) parameters that stay whole on every rank.
        options: fully_shard's.
        reshard_after_backward: off: what a forward gathered stays, and grows stale in the optimizer's step.
        wrapped: each decoder layer is wrapped for activation checkpointing, and the model by torch.compile.
    """

    mesh: "tuple[int, ...]"
    names: "tuple[str, ...]" = ("shard",)
    dtype: torch.dtype = torch.bfloat16
    ignored: "Callable[[str], bool] | None" = None
    options: "dict[str, Any]" = field(default_factory=dict)
    reshard_after_backward: bool = True
    wrapped: bool = False

    @property
    def rounds(self) -> bool:
        """Whether parameters are rounded to bfloat16 when they are exported."""
        return self.dtype == torch.float32


def build(rank: Rank, checkpoint: Path, layout: Layout, trained: "Callable[[str], bool] | None" = None) -> None:
    """Loads a checkpoint and shards it; `trained`: which parameters the optimizer has, None for all."""
    rank.layout = layout
    rank.plain = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=layout.dtype, experts_implementation="eager")
    for name, parameter in rank.plain.named_parameters():
        parameter.requires_grad_(trained is None or trained(name))
    rank.model = copy.deepcopy(rank.plain).train()
    mesh = init_device_mesh("cpu", layout.mesh, mesh_dim_names=layout.names)
    shard_layers(rank.model, mesh, layout)
    rank.sharded = dict(rank.model.named_parameters())
    rank.optimizer = torch.optim.AdamW([p for p in rank.model.parameters() if p.requires_grad], lr=0.01)
    rank.batch = _data_parallel_rank(mesh)
    rank.steps = 0


def shard_layers(model: Any, mesh: DeviceMesh, layout: Layout) -> None:
    """Tensor parallelism first, if there is any, then fully_shard of each decoder layer and of the rest."""
    names = tuple(name for name in layout.names if name != "tensor")
    options = dict(layout.options)
    if layout.ignored is not None:
        options["ignored_params"] = {p for name, p in model.named_parameters() if layout.ignored(name)}
    if layout.wrapped:
        apply_activation_checkpointing(model, check_fn=lambda module: module in list(model.model.layers))
    for layer in model.model.layers:
        if "tensor" in layout.names:
            parallelize_module(layer, mesh["tensor"], _TENSOR_PLAN)
        fully_shard(layer, mesh=mesh[names], **options)
    fully_shard(model, mesh=mesh[names], **options)
    model.set_reshard_after_backward(layout.reshard_after_backward)


def _data_parallel_rank(mesh: DeviceMesh) -> int:
    """A number that ranks of the same tensor-parallel group share, and no others."""
    coordinate = [c for c, name in zip(mesh.get_coordinate(), mesh.mesh_dim_names) if name != "tensor"]
    sizes = [size for size, name in zip(mesh.shape, mesh.mesh_dim_names) if name != "tensor"]
    number = 0
    for place, size in zip(coordinate, sizes):
        number = number * size + place
    return number


def train(rank: Rank, same_batch: bool = False) -> None:
    """A step of AdamW on a batch of this rank's own, or on one that all ranks have; router biases move on all alike."""
    rank.steps += 1
    generator = torch.Generator().manual_seed(1000 * rank.steps + (0 if same_batch else rank.batch))
    tokens = torch.randint(0, rank.model.config.vocab_size, (2, 7), generator=generator)
    rank.model(input_ids=tokens, labels=tokens).loss.backward()
    rank.optimizer.step()
    rank.optimizer.zero_grad()
    for name, buffer in rank.model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.add_(torch.rand(buffer.shape, generator=torch.Generator().manual_seed(rank.steps)))


@torch.no_grad()
def evaluate(rank: Rank) -> "list[str]":
    """A forward pass alone; the names of the parameters that it leaves as gathered copies."""
    rank.model(input_ids=torch.arange(12)[None])
    return [name for name, parameter in rank.model.named_parameters() if parameter is not rank.sharded[name]]


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor on every rank, by PyTorch's own means."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu().clone()


def saved(rank: Rank) -> "dict[str, torch.Tensor] | None":
    """What transformers saves of the model once PyTorch has gathered it; on rank 0. Shards all parameters again."""
    state = {name: gathered(tensor) for name, tensor in rank.model.state_dict().items()}
    if rank.number != 0:
        return None
    rank.plain.load_state_dict(state)
    plain = copy.deepcopy(rank.plain)
    if rank.layout.rounds:
        for parameter in plain.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
    with tempfile.TemporaryDirectory() as directory:
        plain.save_pretrained(directory)
        return load_file(Path(directory) / "model.safetensors")


def open_exporter(
    rank: Rank, socket: Path, model: str, remote: "tuple[int, ...]" = (), **options: Any
) -> "dict[str, Any]":
    """Opens the exporter, on the agent's host unless this rank is one of `remote`; its plan, run and tensors."""
    if rank.layout.rounds:
        options.setdefault("dtype", torch.bfloat16)
    options.setdefault("call_timeout", 30)
    module = torch.compile(rank.model) if rank.layout.wrapped else rank.model
    rank.exporter = lockstep.Publisher.from_fsdp(
        module, socket=socket, model=model, on_agent_host=rank.number not in remote, **options
    )
    return {"plan": rank.exporter.plan_digest, "tensors": rank.exporter.layout, "writes": rank.exporter.writes}


def publish(rank: Rank, version: int) -> SimpleNamespace:
    """Publishes this rank's share."""
    rank.exporter.publish(version=version)
    return stats_of(rank.exporter)
