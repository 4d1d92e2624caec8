"""What an exporter gives in its passes, and the boxes of parameters that each HuggingFace tensor is found to be made of. For
``_recorded`` and ``_plan_cache``."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple, Sequence, Tuple

import torch

from lockstep.core.dtypes import safetensors_dtype
from lockstep.core.errors import BadDataError
from lockstep.export._bridges import Exporter, Stored
from lockstep.export._index_boxes import boxes_of
from lockstep.export._index_values import Digits

Values = Callable[[int, int, Any, Any], Any]  # of the indexes from one to another, for a dtype, on a device
BLOCK = 1 << 20  # elements that are looked at together
_MOST_BOXES = 4096  # of a tensor


class Source(NamedTuple):
    """A tensor of one rank, and the index of its first element among all ranks' elements."""

    rank: int
    name: str
    dtype: Any
    shape: Tuple[int, ...]
    contiguous: bool
    begin: int

    @property
    def elements(self) -> int:
        return int(torch.Size(self.shape).numel())


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

    def is_proved_by(self, tensor: Any, proofs: Values) -> bool:
        """Whether the HuggingFace tensor has the proofs of the source's elements in the box."""
        box = tensor.reshape(self.view)[tuple(slice(at, at + size) for at, size in zip(self.at, self.shape))]
        widest = max(range(len(self.shape)), key=lambda dim: self.strides[dim] * (self.shape[dim] > 1))
        step = self.strides[widest]
        at_once = max(1, min(BLOCK * box.shape[widest] // box.numel(), BLOCK // step))
        for begin in range(0, box.shape[widest], at_once):
            part = box.narrow(widest, begin, min(at_once, box.shape[widest] - begin))
            first = self.source.begin + self.start + begin * step
            end = first + sum((size - 1) * stride for size, stride in zip(part.shape, self.strides)) + 1
            proof = proofs(first, end, self.source.dtype, part.device).to(self.source.dtype)
            wanted = proof.as_strided(part.shape, self.strides, proof.storage_offset())
            if not torch.equal(part, (wanted + self.summand if self.summand else wanted).to(part.dtype)):
                return False
        return True


@dataclass
class _Seen:
    """A HuggingFace tensor of this rank's share, and what it may be made of. ``values`` has, for each digit of the indexes, those of the
    first line along each dimension."""

    number: int
    dtype: str
    shape: Tuple[int, ...]
    values: "list[list[Any]]" = field(default_factory=list)
    candidates: "list[list[Piece]]" = field(default_factory=list)
    proved: bool = False


class Look:
    """What the exporter gives in its passes. Each rank that looks keeps its share of the tensors; of several equal sources it sees its
    own. A pass is taken to its end whatever is found, for other ranks take part in the exporter's collectives.

    Args:
        rank: this process's; ``looking``: all ranks that look.
        sources: of all ranks.
        stored: whose names and shapes the exporter must give; None: what it gives is right.

    Attributes:
        names: of all tensors, in the exporter's order.
    """

    def __init__(
        self,
        rank: int,
        looking: "Sequence[int]",
        sources: "Sequence[Source]",
        exporter: Exporter,
        stored: "Stored | None",
    ) -> None:
        self._rank, self._looking, self._sources = rank, looking, sources
        self._exporter, self._stored = exporter, stored
        self._begins = torch.tensor([source.begin for source in sources])
        self._ends = torch.tensor([source.begin + source.elements for source in sources])
        self._seen: "dict[str, _Seen]" = {}
        self._first: "dict[str, str]" = {}  # of a name that comes again, or is tied: the name whose value it must have
        self.names: "list[str]" = []

    def expect(self, pieces: "Sequence[Piece]") -> None:
        """What the tensors of this rank's share are said to be made of."""
        for piece in pieces:
            seen = self._seen.setdefault(piece.tensor, _Seen(piece.number, piece.dtype, piece.whole))
            seen.candidates = [[*(seen.candidates[0] if seen.candidates else ()), piece]]

    def take(self) -> None:
        """Keeps the values of the next digit, of lines of tensors that are not proved."""

        def keep(name: str, number: int, tensor: Any) -> None:
            form = (safetensors_dtype(name, tensor.dtype), tuple(tensor.shape))
            seen = self._seen.setdefault(name, _Seen(number, *form))
            if form != (seen.dtype, seen.shape):
                raise BadDataError(
                    f'the exporter gives "{name}" {form[0]} {list(form[1])}, and gave it {seen.dtype} {list(seen.shape)} before'
                )
            if not seen.proved:
                lines = [line.to(torch.bfloat16).to("cpu", copy=True) for line in _lines(tensor)]
                seen.values.append(lines)

        self._pass(keep)

    def find(self, digits: Digits, summands: "Sequence[int]") -> None:
        """Makes candidates of the lines that were taken."""
        for name, seen in self._seen.items():
            if not seen.proved:
                made = [self._made_of(name, seen, digits, summand) for summand in summands]
                seen.candidates = [pieces for pieces in made if pieces]
                seen.values.clear()

    def check(self, proofs: Values) -> None:
        """Keeps what the proofs show to be true."""

        def prove(name: str, number: int, tensor: Any) -> None:
            form = (safetensors_dtype(name, tensor.dtype), tuple(tensor.shape))
            seen = self._seen.setdefault(name, _Seen(number, *form))
            seen.proved = False
            for pieces in seen.candidates if form == (seen.dtype, seen.shape) else ():
                if all(piece.is_proved_by(tensor, proofs) for piece in pieces):
                    seen.candidates, seen.proved = [pieces], True
                    break

        self._pass(prove)

    def unproved(self) -> "list[str]":
        """Tensors of this rank's share, or expected to be."""
        given = set(self.names)
        return [name for name, seen in self._seen.items() if not seen.proved or name not in given]

    def adds(self) -> bool:
        """Whether the exporter adds to a tensor of this rank's share."""
        return any(piece.summand for seen in self._seen.values() for pieces in seen.candidates for piece in pieces)

    def pieces(self) -> "list[Piece]":
        """What this rank's share is made of. BadDataError: one is not made of parameters in this way."""
        for name, seen in self._seen.items():
            if not seen.proved:
                raise BadDataError(
                    f'the exporter gives "{name}", which is no copy of boxes of parameters; publish what the exporter gives, by from_stream'
                )
        pieces = [piece for seen in self._seen.values() for piece in seen.candidates[0]]
        for piece in pieces:
            if not piece.source.contiguous:
                raise BadDataError(
                    f'the exporter makes "{piece.tensor}" of "{piece.source.name}", which is not contiguous; make it so'
                )
        return pieces

    def repeats(self) -> bool:
        """Whether a name comes again, or the checkpoint ties it to another: ``check_repeats`` must look at the values."""
        return bool(self._first)

    def check_repeats(self) -> None:
        """With the model's own values. BadDataError: a tensor that comes again has another one, or one that says nothing."""
        wanted = {*self._first, *self._first.values()} if self._rank in self._looking else set()
        known: "dict[str, Any]" = {}
        failure: "Exception | None" = None
        for name, tensor in self._exporter.export():  # to its end: other ranks take part
            if name in wanted and failure is None:
                try:
                    _check_again(name, self._first.get(name, name), tensor.detach(), known)
                except Exception as error:
                    failure = error
        if failure is not None:
            raise failure

    def _pass(self, look: "Callable[[str, int, Any], None]") -> None:
        names: "list[str]" = []
        first: "dict[str, int]" = {}
        failure = None
        for name, tensor in self._exporter.export():
            number = len(names)
            names.append(name)
            looked_at = first.setdefault(name, number) == number and not self._exporter.ignored(name)
            if self.names:
                expected = self.names[number : number + 1] == [name] and self._first.get(name, name) == name
            else:
                expected = self._stored is None or name in self._stored.shapes
            mine = self._looking[number % len(self._looking)] == self._rank
            if looked_at and expected and mine and failure is None:
                try:
                    look(name, number, self._as_stored(name, tensor.detach()))
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

    def _as_stored(self, name: str, tensor: Any) -> Any:
        if not tensor.numel():
            raise BadDataError(f'the exporter gives "{name}" without elements; leave it out')
        if self._stored is None:
            return tensor
        tensor, shape = self._stored.without_padding(name, tensor), self._stored.shapes[name]
        if tuple(tensor.shape) != shape:
            raise BadDataError(f'the exporter gives "{name}" {list(tensor.shape)}; the checkpoint has {list(shape)}')
        return tensor

    def _check_names(self) -> None:
        names = [name for name in self.names if not self._exporter.ignored(name)]
        given = set(names)
        if self._stored is not None:
            shapes = self._stored.shapes
            missing = [name for name in shapes if name not in given and not self._exporter.ignored(name)]
            unknown = [name for name in names if name not in shapes]
            embedding = next((name for name in names if name.endswith("embed_tokens.weight")), None)
            if embedding is not None and [name.endswith("lm_head.weight") for name in unknown] == [True]:
                self._first[unknown.pop()] = embedding
            for trouble, some in (("does not give", missing), ("gives", unknown)):
                if some:
                    more = f", nor {len(some) - 1} more" if some is missing and len(some) > 1 else ""
                    has = "which the checkpoint has" if some is missing else "which the checkpoint lacks"
                    raise BadDataError(f'the exporter {trouble} "{some[0]}"{more}, {has}; leave it out by ignore=')
        if len(names) > len(given):
            counts = Counter(names)
            self._first.update((name, name) for name, count in counts.items() if count > 1)

    def _made_of(self, name: str, seen: _Seen, digits: Digits, summand: int) -> "list[Piece] | None":
        try:
            indexes = [digits.indexes(line, summand) for line in zip(*seen.values)]
            view, boxes = boxes_of([(index, self._sources_of(index)) for index in indexes], _MOST_BOXES) or ((), None)
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
            Piece(
                name,
                seen.number,
                seen.dtype,
                seen.shape,
                view,
                box.at,
                box.shape,
                self._sources[source],
                box.start - self._sources[source].begin,
                box.strides,
                summand,
            )
            for box, source in zip(boxes, sources.tolist())
        ]

    def _sources_of(self, index: Any) -> Any:
        """By number. _NoSource: an index is none of them's."""
        source = torch.bucketize(index, self._begins, right=True) - 1
        if not bool(((source >= 0) & (index < self._ends[source.clamp(min=0)])).all()):
            raise _NoSource
        return source


def _check_again(name: str, first: str, tensor: Any, known: "dict[str, Any]") -> None:
    flat = tensor.contiguous().reshape(-1)
    now = flat.view(torch.uint8)
    if not torch.equal(known.setdefault(first, now.clone()), now):
        raise BadDataError(f'the exporter gives "{name}" for "{first}" again, with other values')
    if bool((flat == flat[0]).all()):
        raise BadDataError(f'the exporter gives "{name}" for "{first}" again, and all their elements are {flat[0]:g}')


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
