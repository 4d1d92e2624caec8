"""A program: one rank of a trainer that sends its weights by vLLM's trainer API (json_program.py)."""

import itertools
import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from json_program import answer_requests
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM
from vllm.distributed.weight_transfer.base import ModuleSource, ParamMeta, Replicate, Shard, WeightSource
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

import lockstep
from lockstep.integrations.vllm import LockstepTrainerInitInfo, block_of


class Gathered(WeightSource):
    """A source without ``iter_local``."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._source = ModuleSource(module)

    @cached_property
    def metadata(self) -> "list[ParamMeta]":
        return self._source.metadata

    def iter_full(self) -> Any:
        return self._source.iter_full()


SOURCES = {"iter_local": ModuleSource, "iter_full": Gathered}


class Trainer:
    """A model under FSDP2, and vLLM's trainer engine for it."""

    def __init__(self) -> None:
        self.engine: Any = None

    def build(self, checkpoint: str, rank: int, world: int, store: str, dtype: str = "bfloat16") -> None:
        """Joins the world, and shards the checkpoint's model over it."""
        torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
        self.rank, self.checkpoint = rank, Path(checkpoint)
        self.model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, dtype))
        mesh = init_device_mesh("cpu", (world,))
        for layer in self.model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)

    def open(self, source: str, url: str, **info: Any) -> str:
        """vLLM's own factory; the engine's class."""
        self.engine = WeightTransferTrainerFactory.trainer_init(
            LockstepTrainerInitInfo(rank=self.rank, **info),
            client=HTTPVLLMWeightSyncClient(url),
            source=SOURCES[source](self.model),
        )
        return type(self.engine).__name__

    def train(self, step: int) -> None:
        """Changes some elements of every parameter, by the step."""
        generator = torch.Generator().manual_seed(step)
        with torch.no_grad():
            for parameter in self.model.parameters():
                whole = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
                changed = torch.distributed.tensor.distribute_tensor(
                    torch.where(whole > 1, whole, 0), parameter.device_mesh, parameter.placements, src_data_rank=None
                )
                parameter.add_(changed)

    def send(self, label: "str | None" = None) -> None:
        """vLLM's call, once a step."""
        self.engine.send_weights(label)

    def save(self, directory: str) -> None:
        """The weights as a checkpoint; called on every rank, and written by the first."""
        whole = {name: parameter.full_tensor() for name, parameter in self.model.named_parameters()}
        if self.rank == 0:
            Path(directory).mkdir()
            shutil.copy(self.checkpoint / "config.json", directory)
            save_file(whole, Path(directory) / "model.safetensors")

    def close(self) -> None:
        """Ends the engine."""
        self.engine.shutdown()


def blocks(shape: "list[int]", mesh: "list[int]", dims: "list[int | None]") -> "list[list[Any]]":
    """Of every rank's piece its start and size by our own arithmetic, and whether that is what torch.chunk gives."""
    owners = tuple(range(10, 10 + torch.Size(mesh).numel()))
    placements = tuple(Replicate() if dim is None else Shard(dim) for dim in dims)
    meta = ParamMeta("w", torch.float32, tuple(shape), owners=owners, mesh_shape=tuple(mesh), placements=placements)
    whole = torch.arange(torch.Size(shape).numel()).view(shape)
    found = []
    for owner, coordinate in zip(owners, itertools.product(*map(range, mesh))):
        piece = whole
        for index, extent, dim in zip(coordinate, mesh, dims):
            if dim is not None:
                chunks = piece.chunk(extent, dim)
                piece = chunks[index] if index < len(chunks) else piece.narrow(dim, 0, 0)
        start, size = block_of(meta, owner)
        block = whole[tuple(slice(first, first + count) for first, count in zip(start, size))]
        found.append([start, size, torch.equal(block, piece)])
    return found


def refusal(
    dtype: str = "", name: str = "", yields: "list[int] | None" = None, owners: "list[int] | None" = None
) -> str:
    """Why a source with metadata of "w", [4, 2], is refused. With ``yields``, its iter_local yields ``name``."""
    source: "WeightSource | None" = None
    if dtype:
        meta = ParamMeta("w", getattr(torch, dtype), (4, 2), owners=owners and tuple(owners))
        members: "dict[str, Any]" = {"metadata": cached_property(lambda self: [meta])}
        if yields is not None:
            members["iter_local"] = lambda self: iter([(name, torch.zeros(yields))])
        source = type("Source", (WeightSource,), members)()
    try:
        WeightTransferTrainerFactory.trainer_init(
            LockstepTrainerInitInfo(rank=0, socket="/nowhere", model="actor"), client=None, source=source
        )
    except lockstep.BadDataError as error:
        return str(error)
    raise AssertionError(f"a source of {dtype} {name} {yields} {owners} was taken")


if __name__ == "__main__":
    trainer = Trainer()
    answer_requests(
        trainer.build, trainer.open, trainer.train, trainer.send, trainer.save, trainer.close, blocks, refusal
    )
