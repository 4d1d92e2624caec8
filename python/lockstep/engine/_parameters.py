"""Which tensors of a module an engine rank describes, and under which names."""

from dataclasses import dataclass, field
from typing import Any, Sequence, Tuple

import torch

from lockstep.core import arguments
from lockstep.core.errors import BadDataError
from lockstep.core.tensors import contiguous_strides, local_of
from lockstep.engine._options import DescribeOptions


@dataclass
class Parameter:
    """One tensor of a module, as it lies in this process. ``address`` is 0 on PyTorch's "meta" device."""

    name: str
    tensor: Any
    dtype: str  # as safetensors names it
    shape: "Tuple[int, ...]"
    strides: "Tuple[int, ...]"  # in elements
    address: int
    slices: "list[dict[str, Any]]" = field(default_factory=list)
    padding: "list[dict[str, Any]]" = field(default_factory=list)

    @property
    def span_bytes(self) -> int:
        """From the first element's begin to the last one's end."""
        if 0 in self.shape:
            return 0
        last = sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides))
        return (last + 1) * int(self.tensor.element_size())


def parameters_of(module: Any, options: DescribeOptions) -> "list[Parameter]":
    """The parameters, each with what it is made of. BadDataError names a tensor that cannot be described."""
    if options.slices is None and options.padding is None:
        return _as_saved(module)
    slices = arguments.entries("slices", options.slices, '"tensor", "from", "shape", "at"')
    padding = arguments.entries("padding", options.padding, '"at", "shape"')
    found = _each_once([located(name, tensor) for name, tensor in module.named_parameters()])
    for own in found:
        own.slices, own.padding = slices.get(own.name, []), padding.get(own.name, [])
        if not own.slices and not own.padding:
            raise BadDataError(f'parameter "{own.name}": give its slices, as of the other parameters')
    return found


def _as_saved(module: Any) -> "list[Parameter]":
    """Made of the tensors that transformers saves of the module; of any other module a tensor has its own name."""
    from lockstep.core.checkpoint import checkpoint_tensors, sharded_parameters

    found = _each_once([located(name, tensor) for name, tensor in sharded_parameters(module)])
    made = checkpoint_tensors(module, {own.name: own.tensor for own in found})
    for parameter in found:
        parameter.slices = [
            {"tensor": own.name, "from": [0] * len(own.shape), "shape": list(own.shape), "at": list(own.start)}
            for own in made[parameter.name]
        ]
    return found


def _each_once(parameters: "Sequence[Parameter]") -> "list[Parameter]":
    """Without those that are tied to one before by their memory alone."""
    seen = set()
    kept = []
    for own in parameters:
        place = own.tensor.device, own.address, own.dtype, own.shape, own.strides
        if own.address == 0 or place not in seen:
            seen.add(place)
            kept.append(own)
    return kept


def tensors_of(module: Any) -> "dict[str, Any]":
    """Parameters, buffers, and tensors that modules have beside them, by name, each once."""
    found = registered(module)
    seen = set(map(id, found.values()))
    for path, own in module.named_modules():
        for name, value in vars(own).items():
            if isinstance(value, torch.Tensor) and value.layout == torch.strided and id(value) not in seen:
                seen.add(id(value))
                found[f"{path}.{name}".lstrip(".")] = value
    return found


def registered(module: Any) -> "dict[str, Any]":
    """Parameters and buffers by name, each once."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def memory_of(tensor: Any) -> int:
    """Where a tensor's storage begins."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except RuntimeError:
        return 0


def located(name: str, tensor: Any) -> Parameter:
    """A tensor where it lies. BadDataError names it where it cannot be described."""
    local = local_of(name, tensor)
    if any(stride == 0 and extent > 1 for extent, stride in zip(local.shape, local.strides)):
        raise BadDataError(f'parameter "{name}": its elements share memory (it is expanded); give it memory of its own')
    return Parameter(name, tensor, local.dtype, local.shape, local.strides, local.address)


def json_of(parameter: Parameter, memory: int, offset: int) -> "dict[str, Any]":
    """The description's entry for a parameter at ``offset`` of ``memory``."""
    entry: "dict[str, Any]" = {"name": parameter.name, "dtype": parameter.dtype, "shape": list(parameter.shape)}
    if parameter.strides != contiguous_strides(parameter.shape):
        entry["strides"] = list(parameter.strides)
    if memory != 0:
        entry["memory"] = memory
    entry["offset"] = offset
    if parameter.slices:
        entry["slices"] = parameter.slices
    if parameter.padding:
        entry["padding"] = parameter.padding
    return entry
