"""What an exporter gives in its passes, and the boxes of parameters that each HuggingFace tensor is found to be made of. For
``_recorded`` and ``_plan_cache``."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence, Tuple

import torch

from lockstep.core.dtypes import safetensors_dtype
from lockstep.core.errors import BadDataError
from lockstep.export._index_boxes import IndexBox, boxes_of, likely_boxes
from lockstep.export._index_values import SUMMANDS, Digits, proofs

_BLOCK = 1 << 22  # elements that are looked at together
_MOST_BOXES = 4096  # of a tensor


class Source(NamedTuple):
    """A tensor of one rank, and the index of its first element among all ranks' elements."""

    rank: int
    name: str
    dtype: Any
    elements: int
    begin: int


@dataclass(frozen=True)
class Piece:
    """A box of a HuggingFace tensor that is one of a source, plus ``summand``: ``start`` and ``strides`` are in the source's elements.

    ``shape`` and ``at`` are the box's, in the HuggingFace tensor seen in the shape ``view``; ``whole`` is its own.
    """

    tensor: str
    number: int  # of that tensor
    dtype: str
    whole: Tuple[int, ...]
    view: Tuple[int, ...]
    at: Tuple[int, ...]
    shape: Tuple[int, ...]
    source: Source
    start: int
    strides: Tuple[int, ...]
    summand: int

    @property
    def name(self) -> str:
        """Of its own among those of all ranks."""
        return f"{self.tensor}{list(self.at)} of rank {self.source.rank}"

    def of(self, source: Any) -> Any:
        """The box of the source's tensor, as the exporter gives it: a view, or, after a sum, a copy."""
        box = source.as_strided(self.shape, self.strides, source.storage_offset() + self.start)
        return box + self.summand if self.summand else box

    def is_proved_by(self, tensor: Any) -> bool:
        """Whether the HuggingFace tensor has the proofs of the source's elements in the box."""
        box = tensor.reshape(self.view)[tuple(slice(at, at + size) for at, size in zip(self.at, self.shape))]
        dim = self.strides.index(max(self.strides))
        at_once = max(1, _BLOCK * box.shape[dim] // box.numel())
        for begin in range(0, box.shape[dim], at_once):
            part = box.narrow(dim, begin, min(at_once, box.shape[dim] - begin))
            first = self.source.begin + self.start + begin * self.strides[dim]
            end = first + sum((size - 1) * stride for size, stride in zip(part.shape, self.strides)) + 1
            proof = proofs(first, end, self.source.dtype, part.device).to(self.source.dtype)
            wanted = proof.as_strided(part.shape, self.strides, proof.storage_offset())
            if not torch.equal(part, (wanted + self.summand if self.summand else wanted).to(part.dtype)):
                return False
        return True


@dataclass
class _Seen:
    """A HuggingFace tensor of this rank's share, and what it may be made of. ``values`` has, of each digit of the indexes, those of the
    first line along each dimension, or of all elements."""

    number: int
    dtype: str
    shape: Tuple[int, ...]
    values: "list[list[Any]]" = field(default_factory=list)
    candidates: "list[list[Piece]]" = field(default_factory=list)
    proved: bool = False
    scattered: bool = False  # it has more boxes than one tensor may have


class Look:
    """What the exporter gives in its passes. Each rank that looks keeps its share of the tensors; of several equal sources it sees its
    own. A pass is taken to its end whatever is found, for other ranks take part in the exporter's collectives.

    Args:
        rank: this process's; ``looking``: all ranks that look.
        sources: of all ranks.
        shapes: those of all tensors, by name; None: what the exporter gives is right.
        ignored: whether a tensor of this name is passed over.
        repeats: a name may come again; ``check_repeats`` then looks at the values.

    Attributes:
        names: of all tensors.
    """

    def __init__(
        self,
        rank: int,
        looking: "Sequence[int]",
        sources: "Sequence[Source]",
        *,
        shapes: "Mapping[str, Tuple[int, ...]] | None",
        ignored: "Callable[[str], bool]",
        repeats: bool,
    ) -> None:
        self._rank, self._looking, self._sources = rank, looking, sources
        self._shapes, self._ignored, self._repeats = shapes, ignored, repeats
        self._begins = torch.tensor([source.begin for source in sources])
        self._ends = torch.tensor([source.begin + source.elements for source in sources])
        self._seen: "dict[str, _Seen]" = {}
        self.names: "list[str]" = []

    def expect(self, pieces: "Sequence[Piece]") -> None:
        """What the tensors of this rank's share are said to be made of."""
        for piece in pieces:
            seen = self._seen.setdefault(piece.tensor, _Seen(piece.number, piece.dtype, piece.whole))
            seen.candidates = [[*(seen.candidates[0] if seen.candidates else ()), piece]]

    def take(self, whole: bool, tensors: "Iterable[Tuple[str, Any]]") -> None:
        """Keeps the values of the next digit, of tensors that are not proved: of their first lines or of the ``whole``."""

        def keep(name: str, number: int, tensor: Any) -> None:
            shape = tuple(tensor.shape)
            seen = self._seen.setdefault(name, _Seen(number, safetensors_dtype(name, tensor.dtype), shape))
            if shape != seen.shape:
                raise BadDataError(f'the exporter gives "{name}" {list(shape)}, and gave it {list(seen.shape)} before')
            if not seen.proved:
                kept = [tensor] if whole else _lines(tensor)
                seen.values.append([values.to(torch.bfloat16).contiguous().to("cpu", copy=True) for values in kept])

        self._pass(tensors, keep)

    def find_likely(self, digits: Digits) -> None:
        """Makes candidates of the lines that were taken."""
        for name, seen in self._seen.items():
            pieces = self._likely(name, seen, digits, seen.values)
            seen.candidates = [pieces] if pieces else []
            seen.values.clear()

    def find(self, digits: Digits) -> None:
        """Makes candidates of the whole tensors that were taken, but for those that the lines tell: these were found to be false."""
        for name, seen in self._seen.items():
            if not seen.proved:
                lines = [_lines(values) for [values] in seen.values]
                made = [self._cut(name, seen, digits, summand) for summand in SUMMANDS]
                false = self._likely(name, seen, digits, lines)
                seen.candidates = [pieces for pieces in made if pieces and pieces != false]
                seen.values.clear()

    def check(self, tensors: "Iterable[Tuple[str, Any]]") -> None:
        """Keeps what the proofs show to be true."""

        def prove(name: str, number: int, tensor: Any) -> None:
            seen = self._seen.setdefault(name, _Seen(number, "", ()))
            seen.proved = False
            for pieces in seen.candidates:
                if seen.shape == tuple(tensor.shape) and all(piece.is_proved_by(tensor) for piece in pieces):
                    seen.candidates, seen.proved = [pieces], True
                    break

        self._pass(tensors, prove)

    def unproved(self) -> "list[str]":
        """Tensors of this rank's share, or expected to be."""
        given = set(self.names)
        return [name for name, seen in self._seen.items() if not seen.proved or name not in given]

    def pieces(self) -> "list[Piece]":
        """What this rank's share is made of. BadDataError: one is not made of parameters in this way."""
        for name, seen in self._seen.items():
            if not seen.proved:
                where = (
                    f"whose elements lie in more than {_MOST_BOXES} places"
                    if seen.scattered
                    else "whose elements are no copies of parameters"
                )
                raise BadDataError(
                    f'the exporter gives "{name}", {where}; publish what the exporter gives, by from_stream'
                )
        return [piece for seen in self._seen.values() for piece in seen.candidates[0]]

    def repeated(self) -> "set[str]":
        """Names that come more than once."""
        return {name for name, count in Counter(self.names).items() if count > 1 and not self._ignored(name)}

    def check_repeats(self, tensors: "Iterable[Tuple[str, Any]]") -> None:
        """With the model's own values. BadDataError: a tensor that comes again has another value."""
        repeated, first, differs = self.repeated(), {}, ""
        for name, tensor in tensors:
            if name in repeated:
                now = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
                if name not in first:
                    first[name] = now.clone()
                elif not torch.equal(first[name], now):
                    differs = differs or name
        if differs:
            raise BadDataError(f'the exporter gives "{differs}" twice, with different values')

    def _pass(self, tensors: "Iterable[Tuple[str, Any]]", look: "Callable[[str, int, Any], None]") -> None:
        names: "list[str]" = []
        first: "dict[str, int]" = {}
        failure = None
        for name, tensor in tensors:
            number = len(names)
            names.append(name)
            looked_at = first.setdefault(name, number) == number and not self._ignored(name)
            if self.names:
                expected = self.names[number : number + 1] == [name]
            else:
                expected = self._shapes is None or name in self._shapes
            mine = self._looking[number % len(self._looking)] == self._rank
            if looked_at and expected and mine and failure is None:
                try:
                    self._check_shape(name, tensor)
                    look(name, number, tensor.detach())
                except Exception as error:
                    failure = error
        if not self.names:
            self.names = names
            self._check_names()
        if names != self.names:
            other = sorted(set(names) ^ set(self.names))
            raise BadDataError(
                f"the exporter gives other tensors each time{': ' if other else ''}{', '.join(other[:3])}"
            )
        if failure is not None:
            raise failure

    def _check_shape(self, name: str, tensor: Any) -> None:
        if not tensor.numel():
            raise BadDataError(f'the exporter gives "{name}" without elements; leave it out')
        shape = tuple(tensor.shape)
        if self._shapes is not None and shape != self._shapes[name]:
            raise BadDataError(
                f'the exporter gives "{name}" {list(shape)}; the checkpoint has {list(self._shapes[name])}'
            )

    def _check_names(self) -> None:
        repeated = sorted(self.repeated())
        if repeated and not self._repeats:
            raise BadDataError(f'the exporter gives "{repeated[0]}" twice')
        if self._shapes is None:
            return
        given = {name for name in self.names if not self._ignored(name)}
        missing = [name for name in self._shapes if name not in given and not self._ignored(name)]
        unknown = [name for name in self.names if name not in self._shapes and not self._ignored(name)]
        for trouble, some in (("does not give", missing), ("gives", unknown)):
            if some:
                more = f", nor {len(some) - 1} more" if some is missing and len(some) > 1 else ""
                has = "which the checkpoint has" if some is missing else "which the checkpoint lacks"
                raise BadDataError(f'the exporter {trouble} "{some[0]}"{more}, {has}; leave it out by ignore=')

    def _likely(self, name: str, seen: _Seen, digits: Digits, values: "Sequence[list[Any]]") -> "list[Piece] | None":
        try:
            lines = [self._located(digits, line, 0) for line in zip(*values)]
            view, boxes = likely_boxes(lines, _MOST_BOXES) or ((), None)
            if boxes is None:
                return None
            starts = torch.tensor([box.start for box in boxes])
            ends = starts + torch.tensor([sum((n - 1) * by for n, by in zip(box.shape, box.strides)) for box in boxes])
            sources = self._sources_of(starts)
            if not torch.equal(sources, self._sources_of(ends)):
                return None
        except _NoSource:
            return None
        return [
            self._piece(name, seen, view, box._replace(source=source), 0)
            for box, source in zip(boxes, sources.tolist())
        ]

    def _cut(self, name: str, seen: _Seen, digits: Digits, summand: int) -> "list[Piece] | None":
        shape = seen.shape or (1,)

        def rows(begin: int, end: int) -> "Tuple[Any, Any]":
            return self._located(digits, [values.view(shape)[begin:end] for [values] in seen.values], summand)

        try:
            boxes = boxes_of(shape, rows, _MOST_BOXES)
        except _NoSource:
            return None
        seen.scattered = seen.scattered or boxes is None
        return None if boxes is None else [self._piece(name, seen, shape, box, summand) for box in boxes]

    def _located(self, digits: Digits, values: "Sequence[Any]", summand: int) -> "Tuple[Any, Any]":
        index = digits.indexes(values, summand)
        return index, self._sources_of(index)

    def _sources_of(self, index: Any) -> Any:
        """By number. _NoSource: an index is none of them's."""
        source = torch.bucketize(index, self._begins, right=True) - 1
        if not bool(((source >= 0) & (index < self._ends[source.clamp(min=0)])).all()):
            raise _NoSource
        return source

    def _piece(self, name: str, seen: _Seen, view: "Tuple[int, ...]", box: IndexBox, summand: int) -> Piece:
        source = self._sources[box.source]
        return Piece(
            name,
            seen.number,
            seen.dtype,
            seen.shape,
            view,
            box.at,
            box.shape,
            source,
            box.start - source.begin,
            box.strides,
            summand,
        )


def _lines(tensor: Any) -> "list[Any]":
    """The first along each dimension; a scalar is one."""
    tensor = tensor if tensor.dim() else tensor.reshape(1)
    lines = []
    for dim in range(tensor.dim()):
        line = tensor
        for other in range(tensor.dim()):
            line = line if other == dim else line.narrow(other, 0, 1)
        lines.append(line.reshape(-1))
    return lines


class _NoSource(Exception):
    """An index is no source's."""
