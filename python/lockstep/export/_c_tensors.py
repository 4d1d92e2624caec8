"""A rank's tensors as the library takes them."""

import ctypes
from typing import Any, Iterable, Sequence, Tuple

from lockstep.core import abi
from lockstep.core.errors import BadDataError
from lockstep.core.tensors import LocalTensor


def refuse_gpu_tensors(tensors: "Iterable[Tuple[str, Any]]") -> None:
    """BadDataError for the first tensor on a GPU where the library reaches none: why not, and what to do."""
    for name, tensor in tensors:
        if getattr(tensor, "is_cuda", False):
            reason = gpu_trouble()
            if reason:
                raise BadDataError(f'tensor "{name}" is on {tensor.device}, and {reason}')
            return


def gpu_trouble() -> str:
    """Why the library reaches no GPU; "" where it does."""
    library = abi.load()
    if library.lockstep_check_gpu() == 0:
        return ""
    return str(library.lockstep_last_error(None).decode(errors="replace"))


def wait_for_gpu(tensors: "Iterable[Any]") -> None:
    """Waits until the tensors' GPUs have done all that was given to them, by any thread, on any stream: the library
    copies on streams of its own, which wait for none of these."""
    for device in {tensor.device for tensor in tensors if getattr(tensor, "is_cuda", False)}:
        import torch

        torch.cuda.synchronize(device)


def c_locals(tensors: "Sequence[LocalTensor]") -> Any:
    """A C array of lockstep_local_tensor."""
    array = (abi.CLocalTensor * len(tensors))()
    for entry, tensor in zip(array, tensors):
        entry.name = tensor.name.encode()
        entry.dtype = tensor.dtype.encode()
        entry.shape = (ctypes.c_uint64 * len(tensor.shape))(*tensor.shape)
        entry.strides = (ctypes.c_uint64 * len(tensor.strides))(*tensor.strides)
        entry.rank = len(tensor.shape)
        entry.address = tensor.address
        entry.convert = tensor.converts
    return array
