"""What vLLM's models ask a CPU for while they are built, and CPUs have not. Imported by vllm_model.py: no model runs there.

torchvision, which models with images import, is not among vLLM's packages, but among SGLang's.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method as unquantized
from vllm.model_executor.kernels.linear.scaled_mm.BlockScaledMMLinearKernel import Fp8BlockScaledMMLinearKernel
from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUFp8BlockScaledMMKernel
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig
from vllm.model_executor.layers.fused_moe.experts import cpu_moe
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUExpertsFp8, X86CPUUnquantizedExperts
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.platforms.cpu import CpuPlatform
from vllm.triton_utils import triton
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl

sys.path.append(str(Path(__file__).resolve().parents[2] / ".cache" / "sglang"))
_operators = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


class _OfDevice:
    """Instead of an event or a stream."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


def build_without_kernels() -> None:
    """Models are built on the CPU whose kernels are for GPUs only."""
    torch.cpu._is_amx_tile_supported = lambda: False  # its kernels are not built here
    torch.cuda.Event = torch.cuda.Stream = _OfDevice
    triton.set_allocator = lambda *_: None
    for name in ("gelu_new", "gelu_fast", "gelu_quick"):
        setattr(torch.ops._C, name, None)
    CPUAttentionBackend.supports_alibi_sqrt = classmethod(lambda cls: True)
    _dense_attention()
    _plain_experts()
    _blocks_as_loaded()


def _blocks_as_loaded() -> None:
    """FP8 blocks stay as they are loaded: the processing is the one that the kernels of Triton and CUTLASS inherit."""
    CPUFp8BlockScaledMMKernel.is_supported = classmethod(lambda *_: (True, None))
    CPUFp8BlockScaledMMKernel.process_weights_after_loading = Fp8BlockScaledMMLinearKernel.process_weights_after_loading
    CPUExpertsFp8._supports_current_device = staticmethod(lambda: True)
    cpu_moe.prepare_fp8_moe_layer_for_cpu = lambda w13, w2: (w13, w2)


def _dense_attention() -> None:
    choose, build = CpuPlatform.get_attn_backend_cls, CPUAttentionBackendImpl.__init__

    def chosen(cls: Any, *arguments: Any, attn_selector_config: Any, **named: Any) -> str:
        return choose(*arguments, attn_selector_config=attn_selector_config._replace(use_sparse=False), **named)

    def built(self: Any, *arguments: Any, chunk_lookback: Any = None, use_alibi_sqrt: Any = None, **named: Any) -> None:
        build(self, *arguments, **named)

    CpuPlatform.get_attn_backend_cls = classmethod(chosen)
    CPUAttentionBackendImpl.__init__ = built


def _plain_experts() -> None:
    choose, check = unquantized.select_unquantized_moe_backend, FusedMoEConfig.__post_init__

    def chosen(*arguments: Any, **named: Any) -> Any:
        try:
            return choose(*arguments, **named)
        except NotImplementedError:
            return UnquantizedMoeBackend.CPU, X86CPUUnquantizedExperts

    def checked(self: Any) -> None:
        try:
            check(self)
        except NotImplementedError as error:
            if "is_act_and_mul" not in str(error):
                raise

    unquantized.select_unquantized_moe_backend = chosen
    FusedMoEConfig.__post_init__ = checked
