"""A GPU for SGLang's models where there is none: what is asked of it before a model runs. Imported by sglang_model.py, before
SGLang."""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.append(str(Path(__file__).with_name("real_sglang")))
import gguf  # noqa: F401 - this and the two below look at what packages there are, so before _Kernels finds more
import serve  # noqa: F401 - SGLang's stand-in for Triton
import torch
import transformers  # noqa: F401
import tvm_ffi  # noqa: F401
from torch.overrides import TorchFunctionMode

_stand_in = sys.modules["_platform_stubs"]  # by serve

_GPU = {
    "is_available": lambda: True,
    "device_count": lambda: 8,
    "current_device": lambda: 0,
    "set_device": lambda _: None,
    "get_device_name": lambda *_: "NVIDIA H100",
    "get_device_capability": lambda *_: (9, 0),
    "mem_get_info": lambda *_: (80 << 30, 80 << 30),
    "Stream": _stand_in.Stream,
}


class _Kernels(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds packages of kernels. Nothing in them is called while a model is built and loaded."""

    def __init__(self) -> None:
        self.packages = {"cutlass", "deep_gemm", "quack", "sgl_kernel", "torchaudio"}

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> "importlib.machinery.ModuleSpec | None":
        if name.partition(".")[0] not in self.packages:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _stand_in._MockModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "deep_gemm":
            module.get_num_sms = lambda: 132


class NoGpu(TorchFunctionMode):
    """A tensor for the GPU is where tensors are that are for none."""

    def __torch_function__(self, function: "Callable[..., Any]", types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            del kwargs["device"]
        return function(*args, **kwargs)


def find_cuda_bindings() -> None:
    """To be called when SGLang is imported: modules that take constants from them have looked, and do without."""
    _kernels.packages.add("cuda")


for _name, _value in _GPU.items():
    setattr(torch.cuda, _name, _value)
torch.version.cuda = "12.9"
_kernels = _Kernels()
sys.meta_path.insert(0, _kernels)
