"""vLLM's own models of any rank, built and loaded on the CPU in one process without groups of processes.

Imported by programs that vLLM's packages are there for (see vllm_process.py), never by tests.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tiny_configs  # noqa: F401 - vLLM knows its configurations then
import torch
import vllm.model_executor.models.registry as registry
import vllm.model_executor.models.utils as utils
from lone_rank import Group, LoneModel, default_dtype
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SpeculativeConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.layers.quantization.fp8 import Fp8LinearMethod, Fp8MoEMethod
from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod
from vllm.model_executor.model_loader.utils import initialize_model
from vllm_without_kernels import build_without_kernels

# Architectures are looked at in a child interpreter, seconds each; it is the same code here.
registry._run_in_subprocess = lambda function: function()
build_without_kernels()


@dataclass(frozen=True)
class Rank:
    """A rank of vLLM: (size, rank) of its groups, and whether each has the whole tower of images (--mm-encoder-tp-mode data)."""

    tensor: "tuple[int, int]" = (1, 0)
    data: "tuple[int, int]" = (1, 0)
    expert_parallel: bool = False
    pipeline: "tuple[int, int]" = (1, 0)
    whole_tower: bool = False


def _world() -> Group:
    """All ranks, where their programs have joined a group of processes."""
    if not torch.distributed.is_initialized():
        return Group(1, 0)
    world = Group(torch.distributed.get_world_size(), torch.distributed.get_rank())
    world.cpu_group = torch.distributed.group.WORLD
    return world


class Model(LoneModel):
    """What vLLM builds for ``rank`` of the checkpoint in ``directory``, or the layers of it that draft; its weights are NaN until
    load()."""

    def __init__(self, directory: Path, rank: Rank, draft: bool = False) -> None:
        self._rank = rank
        model = ModelConfig(
            model=str(directory),
            tokenizer=str(directory),
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=64,
            enforce_eager=True,
            mm_encoder_tp_mode="data" if rank.whole_tower else None,
        )
        self.config = VllmConfig(
            model_config=model,
            cache_config=CacheConfig(enable_prefix_caching=False),
            device_config=DeviceConfig(device="cpu"),
        )
        self.config.instance_id = "one"  # a server makes one configuration for all of its workers
        parallel = self.config.parallel_config  # set afterwards: when created, it looks for as many devices
        parallel.tensor_parallel_size, parallel.pipeline_parallel_size = rank.tensor[0], rank.pipeline[0]
        parallel.world_size = rank.tensor[0] * rank.pipeline[0]
        parallel.rank = rank.pipeline[1] * rank.tensor[0] + rank.tensor[1]
        parallel.data_parallel_size, parallel.data_parallel_rank = rank.data
        parallel.data_parallel_index = rank.data[1]
        parallel.enable_expert_parallel = rank.expert_parallel
        if not self.config.model_config.is_moe:
            parallel.reconfigure_for_independent_dp_rank()  # as the engine's process does
        utils._model_to_pp_missing_layer_names.clear()  # by id: a model that is gone may have had the same
        if draft:
            self.config.speculative_config = SpeculativeConfig(
                method="mtp", num_speculative_tokens=1, target_model_config=model, target_parallel_config=parallel
            )
            model = self.config.speculative_config.draft_model_config
        self.model_config = model
        with self.current(), default_dtype(torch.bfloat16):
            self.module = initialize_model(self.config, model_config=model)
        self.forget()

    def twin(self) -> torch.nn.Module:
        """The model once more, on the "meta" device, as LockstepWeightTransferEngine makes it."""
        from lockstep.engine import _vllm_loading  # not all programs have it

        return _vllm_loading.twin(self.module, self.config, self.model_config)

    def process(self) -> None:
        """What vLLM does to weights that are loaded, for kernels of GPUs."""
        with self.current():
            for layer in self.module.modules():
                method = getattr(layer, "quant_method", None)
                if isinstance(method, (Fp8LinearMethod, Fp8MoEMethod, BaseKVCacheMethod)):
                    method.process_weights_after_loading(layer)
                if hasattr(layer, "kv_b_proj") and hasattr(layer, "process_weights_after_loading"):
                    layer.process_weights_after_loading(torch.bfloat16)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """vLLM's globals are this rank's while inside."""
        with self.groups(), set_current_vllm_config(self.config):
            yield

    @contextlib.contextmanager
    def groups(self) -> Iterator[None]:
        """Its groups alone."""
        tensor, rank = self._rank.tensor
        data, replica = self._rank.data if self.config.model_config.is_moe else (1, 0)
        groups = {
            "_TP": Group(tensor, rank),
            "_DP": Group(data, replica),
            "_EP": Group(data * tensor, replica * tensor + rank),
            "_PP": Group(*self._rank.pipeline),
            **{name: Group(1, 0) for name in ("_PCP", "_DCP")},
            "_WORLD": _world(),
        }
        with contextlib.ExitStack() as stack:
            for name, group in groups.items():
                stack.callback(setattr, parallel_state, name, getattr(parallel_state, name))
                setattr(parallel_state, name, group)
            yield
