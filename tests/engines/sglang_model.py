"""SGLang's own models of any rank, as on a GPU, built and loaded on the CPU in one process without groups of processes.

Imported by programs that SGLang's packages are there for (see sglang_process.py), never by tests.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pretended_gpu
import torch
from lone_rank import Group, LoneModel, default_dtype
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.layers.dp_attention import initialize_dp_attention
from sglang.srt.layers.moe.utils import initialize_moe_config
from sglang.srt.model_loader.loader import _initialize_model
from sglang.srt.models.registry import ModelRegistry  # noqa: F401 - for sglang_recordings.py
from sglang.srt.runtime_context import SpawnRanks, create_context, process_model_config, use_context
from sglang.srt.server_args import ServerArgs

from lockstep.engine._sglang_loading import initialized

pretended_gpu.find_cuda_bindings()


@dataclass(frozen=True)
class Rank:
    """A rank of SGLang: (size, rank) of its groups. Experts are spread over ``expert`` shares of the tensor group."""

    tensor: "tuple[int, int]" = (1, 0)
    expert: int = 1
    pipeline: "tuple[int, int]" = (1, 0)


class Model(LoneModel):
    """What SGLang builds for ``rank`` of the checkpoint in ``directory``; its weights are NaN until load().

    Args:
        options: further ones of SGLang's server.
    """

    def __init__(self, directory: Path, rank: Rank, **options: Any) -> None:
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
            tp_group=Group(tensor, tensor_rank),
            pp_group=Group(stages, stage),
            attn_tp_group=Group(parallel.attn_tp_size, parallel.attn_tp_rank),
            attn_cp_group=Group(1, 0),
            moe_ep_group=Group(parallel.moe_ep_size, parallel.moe_ep_rank),
            moe_tp_group=Group(parallel.moe_tp_size, parallel.moe_tp_rank),
            moe_dp_group=Group(1, 0),
        )
        with self.current():
            initialize_moe_config()
            initialize_dp_attention(arguments)
        self.module = self.build()
        self.forget()

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """SGLang's globals are this rank's while inside."""
        with use_context(self._context), default_dtype(torch.bfloat16), pretended_gpu.NoGpu():
            yield

    def build(self) -> torch.nn.Module:
        """The model, as the plugin sees it built."""
        with self.current():
            return initialized(_initialize_model, process_model_config(), LoadConfig())
