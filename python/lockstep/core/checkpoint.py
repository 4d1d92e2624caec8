"""What a module has of its checkpoint: its tensors by name, and which checkpoint tensors they become when it is saved.

transformers keeps some parameters in another form than checkpoints do: it stacks the experts of a layer, and renames
modules. Saving undoes that, and only its own code knows how. So that code is run over tensors without memory: what
comes out is a view, which shows the parameter and the box of it that a checkpoint tensor is.

Imports PyTorch, and its FSDP2; import this module only where a module is at hand.
"""

import math
import re
from typing import Any, Iterator, Mapping, Sequence, Tuple

import torch
from torch.distributed.fsdp import FSDPModule
from torch.overrides import TorchFunctionMode

from lockstep.core.errors import BadDataError
from lockstep.core.tensors import CheckpointTensor, contiguous_strides

_WRAPPERS = re.compile(r"(?<![^.])(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module|module)\.")


def sharded_parameters(model: torch.nn.Module) -> "Iterator[Tuple[str, Any]]":
    """(name without wrappers, tensor) of all parameters, sharded, and of the buffers that are saved; tied ones once.

    Parameters of FSDP2 that a forward pass left all-gathered are sharded again, without communication: they are copies
    that no optimizer step changes.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    for name, tensor in model.named_parameters():
        if "_flat_param" in name:
            raise BadDataError(f'parameter "{name}" is flattened by FSDP1; use fully_shard (FSDP2)')
        yield _WRAPPERS.sub("", name), tensor
    for path, module in model.named_modules():
        for name, tensor in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                yield _WRAPPERS.sub("", f"{path}.{name}" if path else name), tensor


def checkpoint_tensors(model: Any, parameters: "Mapping[str, Any]") -> "dict[str, list[CheckpointTensor]]":
    """For each of ``parameters`` (name -> tensor of the whole shape, on any device), what checkpoints make of it.

    BadDataError names a checkpoint tensor that is no box of one parameter, such as one that is computed or joined.
    """
    without_memory = {
        name: torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="meta") for name, tensor in parameters.items()
    }
    owners = {_storage(tensor): name for name, tensor in without_memory.items()}
    with _KeepViews():
        saved = _as_saved(model, dict(without_memory))
    made: "dict[str, list[CheckpointTensor]]" = {name: [] for name in parameters}
    for name, view in saved.items():
        owner = owners.get(_storage(view))
        if owner is None:
            raise BadDataError(f'checkpoint tensor "{name}" is no part of one parameter: transformers computes it')
        start = _start_of_box(name, view, without_memory[owner].shape)
        made[owner].append(CheckpointTensor(name, tuple(view.shape), start))
    return made


def _as_saved(model: Any, parameters: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    try:
        from transformers import PreTrainedModel
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # no transformers, or one before 5: modules have the names of checkpoints
        return parameters
    return revert_weight_conversion(model, parameters) if isinstance(model, PreTrainedModel) else parameters


class _KeepViews(TorchFunctionMode):
    """Copies of a view would hide what it is a view of."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.contiguous, torch.Tensor.clone, torch.clone):
            return args[0]
        return func(*args, **(kwargs or {}))


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _start_of_box(name: str, view: torch.Tensor, shape: "Sequence[int]") -> "Tuple[int, ...]":
    """Where ``view`` starts in the tensor of ``shape`` that it is a box of; it may lack leading dimensions."""
    strides = contiguous_strides(shape)
    lacking = len(shape) - view.dim()
    size = (1,) * lacking + tuple(view.shape)
    in_order = lacking >= 0 and all(
        extent == 1 or stride == own
        for extent, stride, own in zip(view.shape, view.stride(), strides[max(lacking, 0) :])
    )
    offset, start = view.storage_offset(), []
    for stride in strides:
        start.append(offset // stride if stride else 0)
        offset %= stride or 1
    fits = all(first + extent <= whole for first, extent, whole in zip(start, size, shape))
    if not (in_order and fits) and math.prod(view.shape) > 0:
        raise BadDataError(f'checkpoint tensor "{name}": transformers permutes the elements of {list(shape)}')
    return tuple(start)
