"""What PyTorch calls safetensors' dtypes."""

from typing import Tuple

import torch

from lockstep.core.dtypes import framework_name
from lockstep.core.errors import bad_tensor


def torch_dtype(name: str, dtype: str) -> "Tuple[torch.dtype, int]":
    """PyTorch's dtype for safetensors' ``dtype``, and how many elements one of PyTorch's holds. BadDataError names the
    tensor where this PyTorch has none."""
    found = getattr(torch, framework_name(dtype), None)
    if found is None:
        raise bad_tensor(name, f"PyTorch {torch.__version__} has no dtype for {dtype}")
    return found, 2 if dtype == "F4" else 1
