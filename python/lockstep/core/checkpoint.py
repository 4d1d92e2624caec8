"""What a module has of its checkpoint: its tensors by name, and which checkpoint tensors they become when it is saved.

transformers keeps some parameters in another form than checkpoints do: it stacks the experts of a layer, and renames
modules. Saving undoes that, and only its own code knows how. So that code is run over tensors without memory: what
comes out is a view, which shows the parameter and the box of it that a checkpoint tensor is.

Imports PyTorch, and its FSDP2; import this module only where there is a module.
"""

import contextlib
import itertools
import math
import re
from typing import Any, Iterator, Mapping, Sequence, Tuple

import torch
from torch.distributed.fsdp import FSDPModule
from torch.overrides import TorchFunctionMode

from lockstep.core.errors import BadDataError
from lockstep.core.tensors import CheckpointTensor, contiguous_strides, refuse_partitioned

# What wrappers call the module that they stand around. Only they have submodules of these names ...
_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
# ... but many models have one called "module": it is a wrapper's where the class, or one that it inherits, is of these.
_WRAPPERS = ("torch.nn.parallel.", "torch.optim.swa_utils", "accelerate.", "apex.", "deepspeed.", "megatron.")


def check_module(module: Any) -> None:
    """BadDataError for what is no module, as a compiled module that was compiled once more is none."""
    if not isinstance(module, torch.nn.Module):
        raise BadDataError(f"a {type(module).__name__} is no torch.nn.Module; give the model itself, or compiled once")


def unwrapped(module: torch.nn.Module) -> Any:
    """What wrappers stand around (torch.compile, DDP, FSDP1, activation checkpointing, DeepSpeed, any nesting), or
    the module itself."""
    inner = _wrapped(module)
    return module if inner is None else unwrapped(inner)


@contextlib.contextmanager
def without_wrappers(model: torch.nn.Module) -> "Iterator[Any]":
    """Inside, ``model`` without wrappers around it or any part of it, for code that goes by modules and their names."""
    wrappers = [
        (parent._modules, name, child)
        for parent in model.modules()
        for name, child in parent._modules.items()
        if child is not None and _wrapped(child) is not None
    ]
    try:
        for siblings, name, child in wrappers:
            siblings[name] = unwrapped(child)
        yield unwrapped(model)
    finally:
        for siblings, name, child in wrappers:
            siblings[name] = child


def sharded_parameters(model: torch.nn.Module) -> "Iterator[Tuple[str, Any]]":
    """(name without wrappers, tensor) of all parameters, sharded, and of the buffers that are saved. One that has
    several names is given once, under the name that save_pretrained keeps.

    Parameters of FSDP2 that a forward pass left all-gathered are sharded again, without communication: they are copies
    that no optimizer step changes. BadDataError names a parameter that is not whole here, nor a DTensor.
    """
    _refuse_flattened(model)
    modules = list(_modules(model, ""))
    for _, module in modules:
        if isinstance(module, FSDPModule):
            module.reshard()
    names: "dict[int, list[str]]" = {}
    tensors: "dict[int, Any]" = {}
    for name, tensor in itertools.chain(_parameters(modules), _saved_buffers(modules)):
        names.setdefault(id(tensor), []).append(name)
        tensors[id(tensor)] = tensor
    tied = [path + key for path, module in modules for key in getattr(module, "_tied_weights_keys", None) or ()]
    ignored = getattr(unwrapped(model), "_keys_to_ignore_on_save", None) or ()
    for key, tensor in tensors.items():
        name = names[key][0] if len(names[key]) == 1 else _kept_name(names[key], tied)
        refuse_partitioned(name, tensor)
        if name not in ignored:
            yield name, tensor


def _wrapped(module: torch.nn.Module) -> Any:
    """What a wrapper wraps; None for any other module."""
    for name in _WRAPPED:
        if name in module._modules:
            return module._modules[name]
    if "module" in module._modules and any(kind.__module__.startswith(_WRAPPERS) for kind in type(module).__mro__):
        return module._modules["module"]
    return None


def _modules(module: torch.nn.Module, path: str) -> "Iterator[Tuple[str, torch.nn.Module]]":
    """(prefix of its tensors' names, module) of it and all below it but for wrappers, under each name that it has."""
    module = unwrapped(module)
    yield path, module
    for name, child in module._modules.items():
        if child is not None:
            yield from _modules(child, f"{path}{name}.")


def _refuse_flattened(model: torch.nn.Module) -> None:
    """BadDataError for an FSDP1 that shards; it may show the original parameters, but cut as the flat one is."""
    for path, module in model.named_modules():
        shards = getattr(module.__dict__.get("_handle"), "uses_sharded_strategy", False)
        if "_flat_param" in module._parameters or (shards and "_fsdp_wrapped_module" in module._modules):
            name = f"{path}._flat_param".lstrip(".")
            raise BadDataError(f'parameter "{name}" is flattened by FSDP1; use fully_shard (FSDP2)')


def _parameters(modules: "Sequence[Tuple[str, torch.nn.Module]]") -> "Iterator[Tuple[str, Any]]":
    for path, module in modules:
        for name, tensor in module._parameters.items():
            if tensor is not None:
                yield path + name, tensor


def _saved_buffers(modules: "Sequence[Tuple[str, torch.nn.Module]]") -> "Iterator[Tuple[str, Any]]":
    for path, module in modules:
        for name, tensor in module._buffers.items():
            if tensor is not None and name not in module._non_persistent_buffers_set:
                yield path + name, tensor


def _kept_name(names: "Sequence[str]", tied: "Sequence[str]") -> str:
    """Of a tensor's several names: the first that none of the patterns ``tied`` finds; else the last of all."""
    own = [name for name in names if not any(re.search(pattern, name) for pattern in tied)]
    return own[0] if own else max(names)


def checkpoint_tensors(model: Any, parameters: "Mapping[str, Any]") -> "dict[str, list[CheckpointTensor]]":
    """For each of ``parameters`` (name -> tensor of the whole shape, on any device), what checkpoints make of it.

    BadDataError names a checkpoint tensor that is no box of one parameter, such as one that is computed or joined.
    """
    without_memory = _without_memory(parameters)
    owners = {_storage(tensor): name for name, tensor in without_memory.items()}
    saved = as_saved(model, without_memory)
    made: "dict[str, list[CheckpointTensor]]" = {name: [] for name in parameters}
    for name, view in saved.items():
        owner = owners.get(_storage(view))
        if owner is None:
            raise BadDataError(
                f'checkpoint tensor "{name}" is no part of one parameter: transformers computes it; '
                "publish Publisher.from_tensors(lambda: lockstep.saved_tensors(model)), whole"
            )
        start = _start_of_box(name, view, without_memory[owner].shape)
        made[owner].append(CheckpointTensor(name, tuple(view.shape), start))
    return made


def is_given(model: Any, shapes: "Mapping[str, Tuple[int, ...]]") -> bool:
    """Whether all parameters of ``model`` are among tensors with these names and shapes, each under one of its names."""
    parameters = dict(_parameters(list(_modules(model, ""))))
    whole = _without_memory(parameters)
    given = [name for name, tensor in whole.items() if shapes.get(name) == tuple(tensor.shape)]
    return bool(given) and {id(tensor) for tensor in parameters.values()} == {id(parameters[name]) for name in given}


def only_in_memory(model: Any, shapes: "Mapping[str, Tuple[int, ...]]") -> "list[str]":
    """Of tensors with these names and shapes, those that ``model`` has in memory and checkpoints of it have not."""
    modules = list(_modules(model, ""))
    own = _without_memory({**dict(_parameters(modules)), **dict(_saved_buffers(modules))})
    given = [name for name, tensor in own.items() if shapes.get(name) == tuple(tensor.shape)]
    saved = as_saved(model, own)
    return [name for name in given if name not in saved or tuple(saved[name].shape) != shapes[name]]


def ties_that_came_apart(model: torch.nn.Module) -> "list[Tuple[str, str]]":
    """(name, name of what it is tied to) of tensors that a transformers configuration ties, and that are two in memory, as
    ``to_empty`` leaves them. Tied shards are one parameter of two modules, as tied tensors are."""
    found = []
    with without_wrappers(model) as whole:
        for path, module in whole.named_modules(remove_duplicate=False):
            ties_of = getattr(module, "get_expanded_tied_weights_keys", None)  # transformers 5 has it
            ties = ties_of(all_submodels=False) if ties_of else {}
            if not ties:
                continue
            tensors = dict(module.named_parameters(remove_duplicate=False))
            tensors.update(module.named_buffers(remove_duplicate=False))
            prefix = f"{path}." if path else ""
            for name, source in ties.items():
                if name in tensors and source in tensors and not _are_one(tensors[name], tensors[source]):
                    found.append((prefix + name, prefix + source))
    return found


def _are_one(one: torch.Tensor, other: torch.Tensor) -> bool:
    places = {_place(one), _place(other)}
    return one is other or len(places) == 1 or None in places


def _place(tensor: Any) -> "Tuple[Any, ...] | None":
    """Address, shape and strides of what is in this process; None where nothing is."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    try:
        address = local.data_ptr()
    except (NotImplementedError, RuntimeError):  # a subclass without memory of its own
        return None
    return (address, tuple(local.shape), local.stride()) if address else None


def as_saved(model: Any, parameters: "Mapping[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """What checkpoints of ``model`` have of its tensors ``parameters``: name to view, or to a copy where it is
    computed.

    BadDataError: a module that is no transformers model contains one, and the checkpoints of that have other tensors.
    """
    try:
        from transformers import PreTrainedModel
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # no transformers, or one before 5: modules have the names of checkpoints
        return dict(parameters)
    with _KeepViews(), without_wrappers(model) as whole:
        if isinstance(whole, PreTrainedModel):
            return dict(revert_weight_conversion(whole, dict(parameters)))
        for path, module in whole.named_modules():
            own = {name[len(path) + 1 :]: tensor for name, tensor in parameters.items() if name.startswith(f"{path}.")}
            if isinstance(module, PreTrainedModel) and revert_weight_conversion(module, own).keys() != own.keys():
                raise BadDataError(
                    f'"{path}" of the {type(whole).__name__} is a {type(module).__name__}, whose checkpoints have other '
                    f"tensors than it has in memory: give that model itself (.{path})"
                )
    return dict(parameters)


def _without_memory(tensors: "Mapping[str, Any]") -> "dict[str, torch.Tensor]":
    whole = {name: tuple(getattr(tensor, "ds_shape", tensor.shape)) for name, tensor in tensors.items()}
    return {name: torch.empty(shape, dtype=tensors[name].dtype, device="meta") for name, shape in whole.items()}


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
