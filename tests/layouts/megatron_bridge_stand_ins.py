"""Megatron-Bridge's environment in a rank, and stand-ins for what needs a GPU to be built. For megatron_bridge_models.py.

Transformer Engine, Mamba's and FLA's packages are libraries of CUDA kernels: without a GPU they are neither built nor imported. The
modules here have their parameters, with their names, shapes and marks, and no computation. So Megatron-core's classes, and the providers
of Megatron-Bridge, build the layout that they build on a GPU.
"""

import importlib.machinery
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

PACKAGES = Path(__file__).resolve().parents[2] / ".cache/megatron-bridge"  # by tests/install_python.sh


def use_megatron_bridge(_: int) -> None:
    """Called in a rank before it imports Megatron or transformers: both look for Transformer Engine once."""
    sys.path.insert(0, str(PACKAGES))
    for name, contents in _MODULES.items():
        _add_module(name, contents)
    torch.compile = _as_it_is  # nothing is computed, and the compiler takes half of the time of all imports
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.Stream = _Nothing
    torch.cuda.synchronize = lambda *_: None
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.nn.Module.cuda = lambda self, *_, **__: self


def forget_attention_settings() -> None:
    """Megatron-core leaves a model's in the environment and refuses the next model that has others."""
    for name in [name for name in os.environ if name.startswith("NVTE_")]:
        del os.environ[name]


def _add_module(name: str, contents: "dict[str, Any]") -> None:
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    module.__dict__.update(contents)
    sys.modules[name] = module
    parent, _, own = name.rpartition(".")
    if parent in _MODULES:
        setattr(sys.modules[parent], own, module)


def _as_it_is(function: Any = None, **_: Any) -> Any:
    return function or _as_it_is


def _mark(parameter: torch.nn.Parameter, dim: int) -> None:
    parameter.tensor_model_parallel, parameter.partition_dim, parameter.partition_stride = True, dim, 1


class _Module(torch.nn.Module):
    """Its extra state is empty, as where nothing is in FP8."""

    def get_extra_state(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, _: Any) -> None:
        pass

    def _add(self, name: str, shape: "tuple[int, ...]", dtype: torch.dtype, device: Any) -> torch.nn.Parameter:
        parameter = torch.nn.Parameter(torch.zeros(shape, dtype=dtype, device=device))
        self.register_parameter(name, parameter)
        return parameter


class _Linears(_Module):
    """`count` linears whose parameters have a number after their names, or one without."""

    def _add_linears(
        self,
        suffixes: "list[str]",
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        parallel_mode: "str | None" = None,
        tp_size: int = 1,
        tp_group: Any = None,
        sequence_parallel: bool = False,
        params_dtype: torch.dtype = torch.float32,
        device: Any = "cpu",
        **_: Any,
    ) -> None:
        self.tp_size = tp_size if tp_group is None else tp_group.size()
        self.in_features = in_features // (self.tp_size if parallel_mode == "row" else 1)
        self.out_features = out_features // (self.tp_size if parallel_mode == "column" else 1)
        self.parallel_mode, self.use_bias, self.sequence_parallel = parallel_mode, bias, sequence_parallel
        for suffix in suffixes:
            weight = self._add(f"weight{suffix}", (self.out_features, self.in_features), params_dtype, device)
            _mark(weight, int(parallel_mode == "row"))  # whatever the mode, and whatever the number of ranks
            if not bias:
                setattr(self, f"bias{suffix}", torch.empty(0))
                continue
            own = self._add(f"bias{suffix}", (self.out_features,), params_dtype, device)
            if parallel_mode == "column":
                _mark(own, 0)
            elif parallel_mode == "row":
                own.sequence_parallel = sequence_parallel


class Linear(_Linears):
    def __init__(self, in_features: int, out_features: int, **options: Any) -> None:
        super().__init__()
        self._add_linears([""], in_features, out_features, **options)


class LayerNormLinear(Linear):
    def __init__(
        self, in_features: int, out_features: int, *, normalization: str = "LayerNorm", **options: Any
    ) -> None:
        super().__init__(in_features, out_features, **options)
        dtype, device = options.get("params_dtype", torch.float32), options.get("device", "cpu")
        self.eps, self.normalization = options.get("eps"), normalization
        for name in ("layer_norm_weight", "layer_norm_bias")[: 2 if normalization == "LayerNorm" else 1]:
            self._add(name, (in_features,), dtype, device).sequence_parallel = self.sequence_parallel


class GroupedLinear(_Linears):
    def __init__(self, num_gemms: int, in_features: int, out_features: int, **options: Any) -> None:
        super().__init__()
        self.num_gemms = num_gemms
        self._add_linears([str(number) for number in range(num_gemms)], in_features, out_features, **options)


class RMSNorm(_Module):
    def __init__(
        self,
        hidden_size: int,
        *,
        sequence_parallel: bool = False,
        params_dtype: torch.dtype = torch.float32,
        device: Any = "cpu",
        **_: Any,
    ) -> None:
        super().__init__()
        for name in self._names():
            self._add(name, (hidden_size,), params_dtype, device).sequence_parallel = sequence_parallel

    def _names(self) -> "tuple[str, ...]":
        return ("weight",)


class LayerNorm(RMSNorm):
    def _names(self) -> "tuple[str, ...]":
        return "weight", "bias"


class DotProductAttention(_Module):
    """It has a parameter where the softmax has a sink that is learned."""

    def __init__(
        self, num_attention_heads: int, *_: Any, softmax_type: str = "vanilla", tp_size: int = 1, **__: Any
    ) -> None:
        super().__init__()
        if softmax_type == "learnable":
            self._add("softmax_offset", (num_attention_heads // tp_size,), torch.float32, "cpu")


class GatedRMSNorm(torch.nn.Module):
    """Mamba's."""

    def __init__(self, hidden_size: int, *, dtype: "torch.dtype | None" = None, **_: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(hidden_size, dtype=dtype))


class _Nothing:
    """What Megatron imports and does not use where a model is only built."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


_NAMES = "GELU GEGLU SiLU SwiGLU ReLU ReGLU LayerNorm RMSNorm BasicLinear Bias Sequential FusibleOperation".split()
_MODULES: "dict[str, dict[str, Any]]" = {
    "transformer_engine": {"__version__": "2.10.0"},
    "transformer_engine.common": {},
    "transformer_engine.common.recipe": {name: _Nothing for name in ("Recipe", "DelayedScaling", "Format")},
    "transformer_engine.pytorch": {
        own.__name__: own for own in (Linear, LayerNormLinear, GroupedLinear, RMSNorm, LayerNorm, DotProductAttention)
    },
    "transformer_engine.pytorch.ops": dict.fromkeys(_NAMES, _Nothing),
    "transformer_engine.pytorch.distributed": {
        name: _Nothing for name in ("CudaRNGStatesTracker", "activation_recompute_forward", "checkpoint")
    },
    "transformer_engine.pytorch.module": {},
    "transformer_engine.pytorch.module.base": {"get_dummy_wgrad": None, "TransformerEngineBaseModule": _Module},
    "transformer_engine.pytorch.fp8": {"FP8GlobalStateManager": _Nothing, "fp8_autocast": _Nothing},
    "transformer_engine.pytorch.router": dict.fromkeys(
        ("fused_compute_score_for_moe_aux_loss", "fused_moe_aux_loss", "fused_topk_with_score_function")
    ),
    "transformer_engine.pytorch.tensor": {"QuantizedTensor": _Nothing},
    "megatron.core.inference.contexts.attention_context.triton.tensor_ops": dict.fromkeys(  # it needs Triton
        ("tensor_get_slice_after", "tensor_masked_update", "tensor_merge")
    ),
    "mamba_ssm": {"__version__": "2.2.5"},
    "mamba_ssm.ops": {},
    "mamba_ssm.ops.triton": {},
    "mamba_ssm.ops.triton.layernorm_gated": {"RMSNorm": GatedRMSNorm},
    "mamba_ssm.ops.triton.ssd_combined": dict.fromkeys(
        ("mamba_chunk_scan_combined", "mamba_split_conv1d_scan_combined")
    ),
    "fla": {},
    "fla.modules": {},
    "fla.modules.l2norm": {"l2norm": None},
    "fla.ops": {},
    "fla.ops.gated_delta_rule": {"chunk_gated_delta_rule": None},
}
