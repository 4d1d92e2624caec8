"""Where a ring's tensors go: into a module's parameters as they come, or whole, by an engine's own loader."""

import math
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, Sequence, Tuple

import torch

from lockstep.core.errors import BadDataError
from lockstep.core.tensors import TensorMeta
from lockstep.engine._options import DescribeOptions, Slices
from lockstep.engine._parameters import Parameter, parameters_of
from lockstep.engine._ring_memory import TensorSlice

Extents = Tuple[int, ...]


@dataclass(frozen=True)
class _Place:
    """The box of ``shape`` at ``start`` of a HuggingFace tensor, which is the box at ``at`` of a parameter; padding has
    no tensor."""

    parameter: Parameter
    tensor: "str | None"
    start: Extents
    shape: Extents
    at: Extents

    @property
    def box(self) -> Extents:
        """The shape with all of the parameter's dimensions: leading ones are 1."""
        return (1,) * (len(self.parameter.shape) - len(self.shape)) + self.shape

    def view(self) -> torch.Tensor:
        """The parameter's elements, in the HuggingFace tensor's dimensions."""
        box = tuple(slice(first, first + extent) for first, extent in zip(self.at, self.box))
        return self.parameter.tensor.detach()[box].view(self.shape)


class IntoModule:
    """Writes straight into a live module's parameters, in place; nothing may read them during ``take``.

    Args:
        module: a transformers model, or any whose parameters and buffers have their checkpoint's names and shapes.
        slices, padding: for other modules (fused, a tensor-parallel rank's), what each parameter is made of: see
            ``describe``.

    A reader that has one refuses a trainer, and names the tensor, if the trainer's tensors do not give every element of
    every parameter exactly once, have another dtype (except BF16 for an F32 parameter), or have no parameter to go to.
    Slices may leave tensors out.
    """

    def __init__(
        self,
        module: Any,
        *,
        slices: "Slices | None" = None,
        padding: "Slices | None" = None,
    ) -> None:
        self._parameters = parameters_of(module, DescribeOptions(slices=slices, padding=padding))
        self._may_leave_out = slices is not None
        self._aliases = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        self._places: "dict[str, list[_Place]]" = {}  # by tensor
        self._padding: "list[_Place]" = []

    def open(self, tensors: "Sequence[TensorMeta]") -> None:
        """BadDataError names what does not fit."""
        there = {meta.name: meta for meta in tensors}
        places: "dict[str, list[_Place]]" = {}
        padding: "list[_Place]" = []
        for parameter in self._parameters:
            own = _places_of(parameter, there, whole=not self._may_leave_out)
            _check_tiling(parameter, own)
            for place in own:
                (padding if place.tensor is None else places.setdefault(place.tensor, [])).append(place)
        if not self._may_leave_out:
            for name in there:
                if name not in places and name not in self._aliases:
                    raise BadDataError(f'the trainer has a tensor "{name}", and the module has no parameter for it')
        self._places, self._padding = places, padding

    @torch.no_grad()
    def take(self, pieces: "Sequence[TensorSlice]") -> None:
        for piece in pieces:
            for place in self._places.get(piece.tensor.name, ()):
                _write(place, piece)

    @torch.no_grad()
    def end(self) -> None:
        for place in self._padding:
            place.view().zero_()


class IntoLoader:
    """Hands whole tensors to a function, such as ``model.load_weights`` of vLLM and SGLang, several times a version.

    Args:
        load: takes an iterable of (name, tensor). The tensors are gone when it returns.

    A tensor that is longer than a bucket is put together in memory of its own first.
    """

    def __init__(self, load: "Callable[[Iterable[Tuple[str, torch.Tensor]]], Any]") -> None:
        self._load = load
        self._parts: "dict[str, torch.Tensor]" = {}  # of tensors that have not come whole yet

    def open(self, tensors: "Sequence[TensorMeta]") -> None:
        self._parts.clear()

    def take(self, pieces: "Sequence[TensorSlice]") -> None:
        whole = [(piece.tensor.name, tensor) for piece in pieces for tensor in self._completed(piece)]
        if whole:
            self._load(whole)

    def end(self) -> None:
        pass

    def _completed(self, piece: TensorSlice) -> "Iterator[torch.Tensor]":
        meta, count = piece.tensor, piece.values.numel()
        elements = math.prod(meta.shape)
        if count == elements:
            yield piece.values.view(meta.shape)
            return
        if piece.first == 0:
            self._parts[meta.name] = torch.empty(elements, dtype=piece.values.dtype, device=piece.values.device)
        self._parts[meta.name][piece.first : piece.first + count].copy_(piece.values)
        if piece.first + count == elements:
            yield self._parts.pop(meta.name).view(meta.shape)


def _places_of(parameter: Parameter, there: "dict[str, TensorMeta]", whole: bool) -> "list[_Place]":
    """Where the parameter's elements come from. BadDataError: not from the tensors that are ``there``, or not from ``whole``
    ones."""
    found = [
        _Place(parameter, entry["tensor"], tuple(entry["from"]), tuple(entry["shape"]), tuple(entry["at"]))
        for entry in parameter.slices
    ]
    for place in found:
        _check_fits(place, there.get(place.tensor or ""), whole)
    return found + [_Place(parameter, None, (), tuple(own["shape"]), tuple(own["at"])) for own in parameter.padding]


def _check_fits(place: _Place, meta: "TensorMeta | None", whole: bool) -> None:
    name = place.parameter.name
    if meta is None:
        raise BadDataError(f'parameter "{name}" is made of tensor "{place.tensor}", which the trainer does not have')
    if (place.parameter.dtype, meta.dtype) not in ((meta.dtype, meta.dtype), ("F32", "BF16")):
        raise BadDataError(f'parameter "{name}" is {place.parameter.dtype}, tensor "{meta.name}" is {meta.dtype}')
    if not (place.shape == meta.shape if whole else _within(place.start, place.shape, meta.shape)):
        raise BadDataError(
            f'parameter "{name}" wants {list(place.shape)} from {list(place.start)} on of tensor "{meta.name}", which '
            f"is {list(meta.shape)}"
        )


def _within(start: Extents, shape: Extents, whole: Extents) -> bool:
    return len(start) == len(shape) == len(whole) and all(
        0 <= first and 0 <= extent and first + extent <= all_of_it
        for first, extent, all_of_it in zip(start, shape, whole)
    )


def _check_tiling(parameter: Parameter, places: "Sequence[_Place]") -> None:
    """Whether the places give every element once: within the parameter, apart from one another, as many as it has."""
    for place in places:
        if not _within(place.at, place.box, parameter.shape):
            raise BadDataError(
                f'parameter "{parameter.name}": {list(place.shape)} at {list(place.at)} is not within '
                f"{list(parameter.shape)}"
            )
    ordered = sorted((place for place in places if math.prod(place.shape) > 0), key=lambda place: place.at)
    for number, place in enumerate(ordered):
        for other in ordered[number + 1 :]:
            if parameter.shape and other.at[0] >= place.at[0] + place.box[0]:
                break
            if _meet(place, other):
                raise BadDataError(
                    f'parameter "{parameter.name}": the slices at {list(place.at)} and {list(other.at)} overlap'
                )
    given = sum(math.prod(place.shape) for place in ordered)
    if given != math.prod(parameter.shape):
        raise BadDataError(f'parameter "{parameter.name}": slices give {given} elements of {list(parameter.shape)}')


def _meet(a: _Place, b: _Place) -> bool:
    return all(
        max(first, other) < min(first + extent, other + other_extent)
        for first, extent, other, other_extent in zip(a.at, a.box, b.at, b.box)
    )


def _write(place: _Place, piece: TensorSlice) -> None:
    """What ``piece`` has of the place's elements, into the parameter."""
    target, count = place.view(), piece.values.numel()
    if place.shape == piece.tensor.shape and target.is_contiguous():
        target.view(-1)[piece.first : piece.first + count].copy_(piece.values)
        return
    at = 0
    for start, size in boxes_of_run(piece.tensor.shape, piece.first, piece.first + count):
        source = piece.values[at : at + math.prod(size)].view(size)
        at += math.prod(size)
        begin = [max(first, own) for first, own in zip(start, place.start)]
        end = [
            min(first + extent, own + own_extent)
            for first, extent, own, own_extent in zip(start, size, place.start, place.shape)
        ]
        if all(first < last for first, last in zip(begin, end)):
            into = tuple(slice(first - own, last - own) for first, last, own in zip(begin, end, place.start))
            out_of = tuple(slice(first - own, last - own) for first, last, own in zip(begin, end, start))
            target[into].copy_(source[out_of])


def boxes_of_run(shape: Extents, begin: int, end: int) -> "Iterator[Tuple[Extents, Extents]]":
    """Elements ``begin`` to ``end`` of a tensor, in the order of its rows, as boxes (start, size), in the same order:
    part of a row, whole rows, part of a row, and so on within the parts."""
    if not shape:
        yield (), ()
        return
    row = math.prod(shape[1:])
    while begin < end:
        index, within = divmod(begin, row)
        whole = (end - begin) // row if within == 0 else 0
        if whole > 0:
            yield (index,) + (0,) * (len(shape) - 1), (whole,) + shape[1:]
            begin += whole * row
        else:
            upto = min(end, (index + 1) * row)
            for start, size in boxes_of_run(shape[1:], within, upto - index * row):
                yield (index,) + start, (1,) + size
            begin = upto
