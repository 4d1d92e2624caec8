"""What PyTorch calls safetensors' dtypes."""

from typing import Tuple

import torch

from lockstep._errors import BadDataError
from lockstep._tensors import _FRAMEWORK_NAMES

_TORCH_NAMES = {name: framework for framework, name in _FRAMEWORK_NAMES.items()}


def torch_dtype(name: str, dtype: str) -> "Tuple[torch.dtype, int]":
    """PyTorch's dtype for safetensors' ``dtype``, and how many elements one of PyTorch's holds. BadDataError names the
    tensor where this PyTorch has none."""
    found = getattr(torch, _TORCH_NAMES.get(dtype, ""), None)
    if found is None:
        raise BadDataError(f'tensor "{name}": PyTorch {torch.__version__} has no dtype for {dtype}')
    return found, 2 if dtype == "F4" else 1
