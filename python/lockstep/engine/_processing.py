"""Processing: what an engine does to a module's weights after it has loaded them, seen in the memory itself. The plugins of engines look
before and after."""

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Iterator, Mapping, Set, Tuple

import torch

from lockstep.engine._parameters import memory_of, registered, tensors_of

_INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}  # by bytes
_CHUNK = 1 << 22  # elements that are digested at a time
_DEPTH = 3  # of objects that a module holds


@dataclass(frozen=True)
class _Look:
    """A tensor at one moment."""

    form: "Tuple[Any, ...]"
    memory: int
    digest: int
    uniform: bool


class Processing:
    """Made before, and ended after.

    A parameter may lie elsewhere afterwards, if it is the same. One whose bytes are all alike cannot show whether they were
    permuted or computed: it counts as changed where it moved and another parameter of its module was changed.

    Args:
        built: names of the tensors that ``module`` had when it was built; None: those that it has.

    Attributes:
        changed: what became of each parameter that is no more what was loaded.
        traceless: single numbers that were removed, where nothing else of their module was changed. vLLM makes some for the
            scales of an attention, which most checkpoints do not have.
    """

    def __init__(self, module: Any, built: "Set[str] | None" = None) -> None:
        self._before = {name: _look(tensor) for name, tensor in tensors_of(module).items()}
        self._built = names_of(module) if built is None else built
        self.changed: "dict[str, str]" = {}
        self.traceless: "Set[str]" = set()

    def end(self, module: Any, parts: "Mapping[str, Processing]" = MappingProxyType({})) -> "Processing":
        """Looks again; ``parts``: what was seen of modules within, by name."""
        after = {name: _look(tensor) for name, tensor in tensors_of(module).items()}
        changed = {name: "was removed" for name in self._before if name not in after}
        for name, now in after.items():
            was = self._before.get(name)
            if was is not None and was.form != now.form:
                changed[name] = f"was made {_text(now.form)} of {_text(was.form)}"
            elif was is not None and was.digest != now.digest:
                changed[name] = "was given other values"
        modules = {name.rpartition(".")[0] for name in changed}
        for name, now in after.items():
            was = self._before.get(name)
            moved = was is not None and now.uniform and now.memory != was.memory
            if moved and name not in changed and name.rpartition(".")[0] in modules:
                changed[name] = "was made anew"
        others = {name.rpartition(".")[0] for name in changed if name in after}
        single = {name for name, was in self._before.items() if math.prod(was.form[1]) == 1}
        self.traceless = {name for name in single - after.keys() if name.rpartition(".")[0] not in others}
        self.changed = changed
        for path, part in parts.items():
            self.changed.update({f"{path}.{name}": reason for name, reason in part.changed.items()})
        return self

    def copies(self, module: Any) -> "list[str]":
        """Tensors, as "MODULE.ATTRIBUTE", that the module was not built with, and have memory of their own."""
        same = self._built - self.changed.keys()
        memories = {memory_of(own) for name, own in registered(module).items() if name in same}
        new = {name: own for name, own in _every_tensor(module).items() if name not in self._built}
        return [
            name
            for name, own in new.items()
            if own.is_floating_point() and own.numel() > 1 and memory_of(own) not in memories
        ]


def names_of(module: Any) -> "Set[str]":
    """Of all tensors that a module has."""
    return set(_every_tensor(module))


def _look(tensor: torch.Tensor) -> _Look:
    tensor = tensor.detach()
    form = (tensor.dtype, tuple(tensor.shape), tensor.stride())
    if tensor.device.type == "meta" or tensor.numel() == 0:
        return _Look(form, 0, 0, True)
    return _Look(form, memory_of(tensor), *_digest(tensor))


def _digest(tensor: torch.Tensor) -> "Tuple[int, bool]":
    """A sum over the bytes and where they are, and whether all elements are the same."""
    whole = tensor.contiguous().reshape(-1)
    flat = whole.view(torch.uint8)
    size = next(size for size in (8, 4, 2, 1) if flat.numel() % size == 0)
    words = flat.view(_INTEGERS[size])
    total = 0
    for begin in range(0, words.numel(), _CHUNK):
        part = words[begin : begin + _CHUNK].to(torch.int64)
        places = torch.arange(begin + 1, begin + 1 + part.numel(), device=part.device, dtype=torch.int64)
        total ^= int(((part ^ (part >> 29)) * (places * -0x61C8864680B583EB)).sum())
        total = (total * 31 + begin) & ((1 << 63) - 1)
    values = whole.view(_INTEGERS[tensor.element_size()]) if tensor.element_size() in _INTEGERS else whole
    return total, bool((values == values[0]).all())


def _text(form: "Tuple[Any, ...]") -> str:
    dtype, shape, strides = form
    return f"{str(dtype).rpartition('.')[2]} {list(shape)} of strides {list(strides)}"


def _every_tensor(module: Any) -> "dict[str, torch.Tensor]":
    """Parameters, buffers, and what modules hold beside them, also in objects."""
    found = registered(module)
    seen: "set[int]" = set()
    for name, own in module.named_modules():
        found.update(_held(name, own, seen, _DEPTH))
    return found


def _held(name: str, holder: Any, seen: "set[int]", depth: int) -> "Iterator[Tuple[str, torch.Tensor]]":
    values = (
        holder if isinstance(holder, dict) else dict(enumerate(holder)) if isinstance(holder, (list, tuple)) else None
    )
    values = getattr(holder, "__dict__", {}) if values is None else values
    for key, value in list(values.items()):
        if key in ("_parameters", "_buffers", "_modules") or id(value) in seen:
            continue
        if isinstance(value, torch.Tensor):
            yield f"{name}.{key}".lstrip("."), value
        elif (
            depth
            and not isinstance(value, (torch.nn.Module, str, bytes, int, float, type, type(None)))
            and not callable(value)
        ):
            seen.add(id(value))
            yield from _held(f"{name}.{key}", value, seen, depth - 1)
