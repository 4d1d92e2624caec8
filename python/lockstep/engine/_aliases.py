"""Tensors of a module that lie in the memory of its parameters."""

from typing import Any, Iterator, Sequence, Tuple

import torch

from lockstep.core.errors import BadDataError
from lockstep.engine._parameters import Parameter, located


def aliases_of(module: Any, parameters: "Sequence[Parameter]") -> "list[Parameter]":
    """What must move where ``parameters`` do, or would keep their old values: views that a module has next to its
    parameters, in attributes or in lists and dicts of them; buffers; parameters that are tied by their memory alone.

    Raises:
        BadDataError: such a tensor cannot be moved; the text names it.
    """
    moved = {id(own.tensor) for own in parameters}
    devices = {own.tensor.device for own in parameters}
    others: "dict[int, Parameter]" = {}
    for name, tensor in _tensors_of(module):
        if id(tensor) not in moved and id(tensor) not in others and tensor.device in devices:
            others[id(tensor)] = _anywhere(name, tensor)
    aliases = []
    for block in _overlapping([*parameters, *others.values()]):
        if any(id(own.tensor) in moved for own in block):
            aliases += [_movable(own) for own in block if id(own.tensor) not in moved]
    return aliases


def _tensors_of(module: Any) -> "Iterator[Tuple[str, torch.Tensor]]":
    for prefix, part in module.named_modules():
        own = {**vars(part), **part._parameters, **part._buffers}
        for name in ("_parameters", "_buffers", "_modules"):
            own.pop(name, None)
        for name, value in own.items():
            yield from _tensors_in(f"{prefix}.{name}" if prefix else name, value, set())


def _tensors_in(name: str, value: Any, within: "set[int]") -> "Iterator[Tuple[str, torch.Tensor]]":
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    if not isinstance(value, (dict, list, tuple)) or id(value) in within:
        return
    for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _tensors_in(f"{name}[{key!r}]", entry, within | {id(value)})


def _anywhere(name: str, tensor: torch.Tensor) -> Parameter:
    """Where a tensor of any kind lies; at address 0 if that is nowhere."""
    try:
        address = tensor.data_ptr() if tensor.layout is torch.strided else 0
    except RuntimeError:  # it has no storage
        address = 0
    return Parameter(name, tensor, "", tuple(tensor.shape), tuple(tensor.stride()) if address else (), address)


def _overlapping(tensors: "Sequence[Parameter]") -> "Iterator[list[Parameter]]":
    """Those in memory, in groups that reach into one another."""
    group: "list[Parameter]" = []
    end = 0
    for own in sorted((own for own in tensors if own.address), key=lambda own: own.address):
        if group and own.address >= end:
            yield group
            group = []
        group.append(own)
        end = max(end, own.address + own.span_bytes)
    if group:
        yield group


def _movable(own: Parameter) -> Parameter:
    if type(own.tensor) is not torch.Tensor and not isinstance(own.tensor, torch.nn.Parameter):
        kind = type(own.tensor).__name__
        raise BadDataError(f'"{own.name}" is a {kind} in the memory of parameters, and would not move with them')
    return located(own.name, own.tensor)
