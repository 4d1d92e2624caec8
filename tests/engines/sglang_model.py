"""SGLang's own models of any rank, as on a GPU, built and loaded on the CPU in one process without groups of processes.

Imported by programs that SGLang's packages are there for (see sglang_process.py), never by tests.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pretended_gpu
import torch
from safetensors.torch import load_file
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.layers.dp_attention import initialize_dp_attention
from sglang.srt.layers.moe.utils import initialize_moe_config
from sglang.srt.model_loader.loader import _initialize_model
from sglang.srt.models.registry import ModelRegistry  # noqa: F401 - which imports the models
from sglang.srt.runtime_context import SpawnRanks, create_context, process_model_config, use_context
from sglang.srt.server_args import ServerArgs

pretended_gpu.find_cuda_bindings()


@dataclass(frozen=True)
class Rank:
    """A rank of SGLang: (size, rank) of its groups. Experts are spread over ``expert`` shares of the tensor group."""

    tensor: "tuple[int, int]" = (1, 0)
    expert: int = 1
    pipeline: "tuple[int, int]" = (1, 0)


class Model:
    """What SGLang builds for ``rank`` of the checkpoint in ``directory``; its weights are NaN until load().

    Args:
        options: further ones of SGLang's server.
    """

    def __init__(self, directory: Path, rank: Rank, device: str = "cpu", **options: Any) -> None:
        (tensor, tensor_rank), (stages, stage) = rank.tensor, rank.pipeline
        arguments = ServerArgs(
            model_path=str(directory),
            skip_tokenizer_init=True,
            dtype="bfloat16",
            device="cuda",
            tp_size=tensor,
            ep_size=rank.expert,
            pp_size=stages,
            **options,
        )
        self._context = create_context(
            arguments, role="scheduler", ranks=SpawnRanks(world_rank=tensor * stage + tensor_rank, gpu_id=0)
        )
        parallel = self._context.parallel
        parallel.override_permanently(
            tp_group=_Group(tensor, tensor_rank),
            pp_group=_Group(stages, stage),
            attn_tp_group=_Group(parallel.attn_tp_size, parallel.attn_tp_rank),
            attn_cp_group=_Group(1, 0),
            moe_ep_group=_Group(parallel.moe_ep_size, parallel.moe_ep_rank),
            moe_tp_group=_Group(parallel.moe_tp_size, parallel.moe_tp_rank),
            moe_dp_group=_Group(1, 0),
        )
        with self.current():
            initialize_moe_config()
            initialize_dp_attention(arguments)
            self.config = process_model_config()
            with torch.device(device):
                self.module = _initialize_model(self.config, LoadConfig())
        for parameter in self.module.parameters():
            parameter.data.fill_(float("nan"))

    def load(self, directory: Path) -> None:
        """Runs SGLang's loader of this model on a checkpoint of one file."""
        with self.current():
            self.module.load_weights(iter(load_file(directory / "model.safetensors").items()))

    def parameters(self) -> "dict[str, torch.Tensor]":
        """By name, each storage once: what the engine serves from."""
        return {name: parameter.data for name, parameter in self.module.named_parameters()}

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """SGLang's globals are this rank's while inside."""
        with use_context(self._context), _default_dtype(torch.bfloat16), pretended_gpu.NoGpu():
            yield


class _Group:
    """As much of a group of processes as layers ask for while they are built and loaded."""

    device_communicator = None

    def __init__(self, size: int, rank: int) -> None:
        self.world_size, self.ranks = size, list(range(size))
        self.rank = self.local_rank = self.rank_in_group = rank
        self.is_first_rank, self.is_last_rank = rank == 0, rank == size - 1
        self.device_group = self.cpu_group = SimpleNamespace(size=lambda: size, rank=lambda: rank)


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
