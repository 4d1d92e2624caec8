"""What a recorder knows of storages: of each, what was copied into it, in order."""

from typing import Any, Iterable, Iterator, Mapping, Sequence, Tuple

import torch

from lockstep.engine._strided import Copy, dims_of, through

Ops = Tuple[Tuple[Any, ...], ...]


class Storage:
    """What is known of a storage. It is kept, so that no other gets its number."""

    def __init__(self, storage: Any, tensor: torch.Tensor) -> None:
        self.storage = storage
        self.dtype = tensor.dtype
        self.copies: "list[Copy]" = []
        self.whole = False  # it is a checkpoint's tensor
        self.constant: "torch.Tensor | None" = None  # its values, where they are no tensor's

    def values(self, view: torch.Tensor) -> torch.Tensor:
        """Of the constant."""
        assert self.constant is not None
        return self.constant.as_strided(view.shape, view.stride(), view.storage_offset())


class Storages:
    """Those that a recorder has met.

    Args:
        destinations: tensors that have names of their own.
    """

    def __init__(self, destinations: "Mapping[str, torch.Tensor]") -> None:
        self._storages: "dict[int, Storage]" = {}
        self.names: "dict[int, str]" = {}  # of destinations
        for name, tensor in destinations.items():
            self.known(tensor)
            self.names.setdefault(number_of(tensor), name)

    def known(self, tensor: torch.Tensor) -> Storage:
        """The storage of a tensor, which is known from here on."""
        number = number_of(tensor)
        if number not in self._storages:
            self._storages[number] = Storage(tensor.untyped_storage(), tensor)
        return self._storages[number]

    def find(self, tensor: torch.Tensor) -> "Storage | None":
        """The storage of a tensor, if it is known."""
        return self._storages.get(number_of(tensor))

    def is_symbolic(self, tensor: torch.Tensor) -> bool:
        """Whether its values are not there: of the checkpoint, or written from it."""
        storage = self.find(tensor)
        return storage is not None and bool(storage.copies)

    def copies(self, to: torch.Tensor, source: torch.Tensor, ops: Ops = ()) -> "list[Copy]":
        """A copy between two views of one shape, from where ``source`` was itself copied from."""
        if to.numel() == 0:
            return []
        converted = conversion(source.dtype, to.dtype)
        storage = self.find(source)
        dims = dims_of(to.shape, to.stride(), source.stride())
        if storage is None or not storage.copies:
            return [self._of_no_tensor(to, source)]
        if storage.dtype != source.dtype:
            return [self.computed(to, f"bytes of {storage.dtype} as {source.dtype}")]
        found: "list[Copy]" = []
        for copy in storage.copies:
            if storage.whole:  # as it lies in the checkpoint
                parts: "Iterable[Copy]" = [Copy(dims, to.storage_offset(), copy.tensor, source.storage_offset())]
            else:
                parts = through(copy, dims, to.storage_offset(), source.storage_offset())
            found += [part.after(ops + converted) for part in parts]
        if len(found) != 1 or elements_of(found[0]) != to.numel():  # what no part gives shows, if there is such
            found.insert(0, self._of_no_tensor(to, source))
        return found

    def _of_no_tensor(self, to: torch.Tensor, source: torch.Tensor) -> Copy:
        storage = self.find(source)
        values = source if source.device.type != "meta" else None
        if storage is not None and storage.constant is not None:
            values = storage.values(source)
        if values is None:
            return self.computed(to, "memory that the loader did not write")
        first = values.reshape(-1)[0]
        if not bool((values == first).all()):
            return self.computed(to, "values that the engine has itself")
        return self.constant(to, first.item())

    def constant(self, to: torch.Tensor, value: "float | int") -> Copy:
        dims = dims_of(to.shape, to.stride(), [0] * to.dim())
        return Copy(dims, to.storage_offset(), value=value)

    def computed(self, to: torch.Tensor, why: str) -> Copy:
        dims = dims_of(to.shape, to.stride(), [0] * to.dim())
        return Copy(dims, to.storage_offset(), computed=why)

    def sources(self, args: Any) -> str:
        copies = [copy for own in tensors_in(args) for copy in self._of(own)]
        names = {f"({copy.computed})" if copy.computed else copy.tensor or str(copy.value) for copy in copies}
        names |= {self.names[number_of(own)] for own in tensors_in(args) if number_of(own) in self.names}
        return ", ".join(sorted(names)) or "what it has itself"

    def _of(self, tensor: torch.Tensor) -> "Sequence[Copy]":
        storage = self.find(tensor)
        return () if storage is None else storage.copies


def number_of(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def elements_of(copy: Copy) -> int:
    count = 1
    for dim in copy.dims:
        count *= dim.extent
    return count


def conversion(source: torch.dtype, to: torch.dtype) -> Ops:
    return () if source == to else (("to", str(to).rpartition(".")[2]),)


def tensors_in(values: Any) -> "Iterator[torch.Tensor]":
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple, dict)):
            yield from tensors_in(value)
