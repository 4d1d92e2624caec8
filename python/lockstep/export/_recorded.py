"""The part of a model whose HuggingFace tensors a trainer's own exporter makes of its parameters: of what, is recorded once, by values. For
``megatron``."""

import contextlib
import functools
import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Sequence, Tuple

import torch

from lockstep.core.delayed_interrupt import delayed_interrupt
from lockstep.core.dtypes import safetensors_dtype
from lockstep.core.errors import BadDataError
from lockstep.core.tensors import CheckpointTensor
from lockstep.export._adapter import refuse_adapters
from lockstep.export._agreement import all_gather, gather, rank_of
from lockstep.export._chunks import chunks_of, finish_gathers, keep_router_biases_exact
from lockstep.export._index_boxes import boxes_of
from lockstep.export._parts import (
    Box,
    Frozen,
    Shard,
    ShardsPart,
    any_requires_gradient,
    frozen_predicate,
    goes_by_gradient,
    names_of,
)

Exporter = Callable[[], "Iterable[Tuple[str, Any]]"]

_BITS, _DIGIT = 8, 0xFF  # of a digit; 1 to 256 are exact in every floating type of 8 bits of precision
_BLOCK = 1 << 22  # elements that are looked at together
_MOST_BOXES = 4096  # of a tensor
_GAP = 1  # between sources: an index beyond one is none of the next


class Source(NamedTuple):
    """A tensor of one rank, and the index of its first element among all ranks' elements."""

    rank: int
    name: str
    elements: int
    begin: int


@dataclass(frozen=True)
class Piece:
    """A box of a HuggingFace tensor that is one of a source: ``start`` and ``strides`` are in its elements.

    ``shape`` and ``at`` are the box's; ``whole`` is the HuggingFace tensor's shape.
    """

    tensor: str
    number: int  # of that tensor
    dtype: str
    whole: Tuple[int, ...]
    at: Tuple[int, ...]
    shape: Tuple[int, ...]
    source: Source
    start: int
    strides: Tuple[int, ...]

    @property
    def name(self) -> str:
        """Of its own among those of all ranks."""
        return f"{self.tensor}{list(self.at)} of rank {self.source.rank}"


class RecordedPart(ShardsPart):
    """Model chunks of which an exporter knows what HuggingFace's tensors are made of. It runs some times, on all ranks together.

    Args:
        model_chunks: as for ``lockstep.megatron``. Values of parameters and buffers are what they were afterwards.
        export: gives (HuggingFace name, whole tensor), on every rank the same names in the same order.
        convert: float32 parameters may be rounded to the bfloat16 that the exporter gives.
        frozen: as for ``lockstep.fsdp``, by HuggingFace names.
    """

    def __init__(self, model_chunks: Any, export: Exporter, *, convert: bool, frozen: Frozen) -> None:
        predicate = frozen_predicate(frozen)
        super().__init__(self._views, self._shard, self._frozen, converts=convert)
        self.frozen_names, self.frozen_by_gradient = names_of(predicate), goes_by_gradient(predicate)
        self._chunks, self._export, self._is_frozen_tensor = chunks_of(model_chunks), export, predicate
        for chunk in self._chunks:
            refuse_adapters(chunk)
            keep_router_biases_exact(chunk)
        self._pieces: "dict[str, Piece]" = {}  # this rank's, each a tensor of its own name
        self._now: "dict[str, Any]" = {}  # what is read

    def open(self, group: Any, on_agent_host: bool) -> None:
        """BadDataError: a HuggingFace tensor is no copy of parameters, comes twice, or not in every pass; the text names it."""
        gather(self.prepare, group)
        tensors = _tensors(self._chunks)
        ranks = all_gather(([(name, tensor.numel()) for name, tensor in tensors.items()], on_agent_host), group)
        sources, end = [], 1  # a constant 1 would be the element 0
        for rank, (sizes, _) in enumerate(ranks):
            for name, elements in sizes:
                sources.append(Source(rank, name, elements, end))
                end += elements + _GAP
        looking = [rank for rank, (_, here) in enumerate(ranks) if here] or list(range(len(ranks)))
        look = _Look(rank_of(group), looking)
        own = [source for source in sources if source.rank == rank_of(group)]
        with torch.no_grad(), _stand_ins(tensors) as fill:
            for number in range(-(-end.bit_length() // _BITS)):
                gather(functools.partial(fill, own, functools.partial(_digit, number)), group)
                gather(lambda: look.digit(self._export()), group)
            _check_alike(all_gather(hashlib.sha256("\0".join(look.names).encode()).digest(), group))
            gather(functools.partial(fill, own, _proof), group)
            gather(lambda: look.check(self._export()), group)
        found = [piece for pieces in gather(lambda: look.pieces(sources), group) for piece in pieces]
        mine = [piece for piece in found if piece.source.rank == rank_of(group)]
        self._pieces = {piece.name: piece for piece in sorted(mine, key=lambda piece: piece.number)}

    def prepare(self) -> None:
        finish_gathers(self._chunks)

    def trains(self) -> bool:
        return any_requires_gradient(_tensors(self._chunks).items())

    def _views(self) -> "Iterator[Tuple[str, Any]]":
        self._now = _tensors(self._chunks)
        for name, own in self._pieces.items():
            whole = self._now.get(own.source.name)
            if whole is None or whole.numel() != own.source.elements or not whole.untyped_storage().nbytes():
                raise BadDataError(
                    f'parameter "{own.source.name}" has no memory, or not as much as when the publisher was made; publish while the '
                    "model has its weights, or make a new publisher"
                )
            yield name, whole.detach().as_strided(own.shape, own.strides, whole.storage_offset() + own.start)

    def _shard(self, name: str, tensor: Any) -> Shard:
        own = self._pieces[name]
        zeros = (0,) * len(own.shape)
        made = CheckpointTensor(own.tensor, own.whole, zeros, own.at, own.shape)
        box = Box(zeros, zeros, own.shape)
        return Shard(name, own.dtype, own.shape, own.shape, [box], self._frozen(name, tensor), [made])

    def _frozen(self, name: str, _: Any) -> bool:
        own = self._pieces[name]
        return self._is_frozen_tensor(own.tensor, self._now[own.source.name])


def _tensors(chunks: "Sequence[Any]") -> "dict[str, Any]":
    """Parameters and buffers that an exporter may copy, by the chunk's number and their names."""
    named = [
        (f"{number}.{name}", tensor)
        for number, chunk in enumerate(chunks)
        for name, tensor in (*chunk.named_parameters(), *chunk.named_buffers())
    ]
    return {
        name: tensor
        for name, tensor in named
        if tensor.is_floating_point() and tensor.numel() and tensor.is_contiguous()
    }


def _check_alike(names: "Sequence[bytes]") -> None:
    for rank, own in enumerate(names):
        if own != names[0]:
            raise BadDataError(
                f"the exporter gives other tensors on rank {rank} than on rank 0; every rank must give the same names in the same order"
            )


def _digit(number: int, index: Any, _: Any) -> Any:
    return ((index >> number * _BITS) & _DIGIT) + 1


def _proof(index: Any, dtype: Any) -> Any:
    """Negative fractions, which arithmetic and constants do not give by chance: of all the bits that float32 has, or of a digit."""
    return _fine(_hash(index)) if dtype == torch.float32 else _coarse(_hash(index))


def _fine(value: Any) -> Any:
    return ((value & 0xFFFFFF) + 1).to(torch.float32) * -(2.0**-24)


def _coarse(value: Any) -> Any:
    return ((value & _DIGIT) + 1).to(torch.float32) * -(2.0**-8)


def _hash(index: Any) -> Any:
    mixed = index * -0x61C8864680B583EB
    return (mixed >> 29) ^ (mixed >> 47)


@contextlib.contextmanager
def _stand_ins(tensors: "dict[str, Any]") -> "Iterator[Callable[[Sequence[Source], Callable[[Any, Any], Any]], None]]":
    """What it gives fills others in place of the tensors' data, with a function of the indexes and the dtype."""
    data = {name: tensor.data for name, tensor in tensors.items()}

    def fill(sources: "Sequence[Source]", value: "Callable[[Any, Any], Any]") -> None:
        for source in sources:
            tensor = tensors[source.name]
            if tensor.data_ptr() == data[source.name].data_ptr():
                tensor.data = torch.empty_like(tensor.data)
            flat = tensor.data.view(-1)
            for begin in range(0, source.elements, _BLOCK):
                end = min(source.elements, begin + _BLOCK)
                index = torch.arange(source.begin + begin, source.begin + end, device=tensor.device)
                flat[begin:end].copy_(value(index, tensor.dtype))

    try:
        yield fill
    finally:
        with delayed_interrupt():
            for name, tensor in tensors.items():
                tensor.data = data[name]


class _Look:
    """What the exporter gives in its passes. Each rank that looks keeps its share of the tensors; of several equal sources it sees its
    own. A pass is taken to its end whatever is found, for other ranks take part in the exporter's collectives.

    Attributes:
        names: of all tensors.
        seen: of the rank's own share.
    """

    def __init__(self, rank: int, looking: "Sequence[int]") -> None:
        self._rank, self._looking = rank, looking
        self.names: "list[str]" = []
        self.seen: "dict[str, _Seen]" = {}

    def digit(self, tensors: "Iterable[Tuple[str, Any]]") -> None:
        """Keeps the next digit of each element's index."""

        def keep(name: str, tensor: Any) -> None:
            if not tensor.numel():
                raise BadDataError(f'the exporter gives "{name}" without elements; leave it out')
            seen = self.seen.setdefault(name, _Seen(safetensors_dtype(name, tensor.dtype), tuple(tensor.shape), []))
            if tuple(tensor.shape) != seen.shape:
                raise BadDataError(
                    f'the exporter gives "{name}" {list(tensor.shape)}, and gave it {list(seen.shape)} before'
                )
            seen.digits.append(_digits(name, tensor))

        self._pass(tensors, keep)

    def check(self, tensors: "Iterable[Tuple[str, Any]]") -> None:
        """Compares each element with the proof of the index that its digits give."""
        self._pass(tensors, lambda name, tensor: self.seen[name].check(name, tensor))

    def pieces(self, sources: "Sequence[Source]") -> "list[Piece]":
        """Of the rank's own share."""
        numbers = {name: number for number, name in enumerate(self.names)}
        return [piece for name, seen in self.seen.items() for piece in seen.pieces(name, numbers[name], sources)]

    def _pass(self, tensors: "Iterable[Tuple[str, Any]]", look: "Callable[[str, Any], None]") -> None:
        names: "list[str]" = []
        failure = None
        for name, tensor in tensors:
            mine = self._looking[len(names) % len(self._looking)] == self._rank
            expected = not self.names or self.names[len(names) : len(names) + 1] == [name]
            names.append(name)
            if mine and expected and failure is None:
                try:
                    look(name, tensor.detach())
                except Exception as error:
                    failure = error
        if not self.names:
            twice = [name for name, count in Counter(names).items() if count > 1]
            if twice:
                raise BadDataError(f'the exporter gives "{twice[0]}" twice')
            self.names = names
        if names != self.names:
            other = sorted(set(names) ^ set(self.names))
            raise BadDataError(
                f"the exporter gives other tensors each time{': ' if other else ''}{', '.join(other[:3])}"
            )
        if failure is not None:
            raise failure


class _Seen(NamedTuple):
    """A HuggingFace tensor, and the digits of the index of each element's source."""

    dtype: str
    shape: Tuple[int, ...]
    digits: "list[Any]"

    def check(self, name: str, values: Any) -> None:
        """BadDataError: an element is not the proof of its index, as it is or rounded to bfloat16."""
        if tuple(values.shape) != self.shape:
            raise _no_copy(name)
        for block in _blocks(values.numel()):
            value, proof = values.reshape(-1)[block].to(torch.float32).cpu(), _hash(self._places(block))
            fine = _fine(proof) if self.dtype == "F32" else _fine(proof).to(torch.bfloat16).to(torch.float32)
            if not bool(((value == _coarse(proof)) | (value == fine)).all()):
                raise _no_copy(name)

    def pieces(self, name: str, number: int, sources: "Sequence[Source]") -> "Iterator[Piece]":
        begins = torch.tensor([source.begin for source in sources])
        ends = torch.tensor([source.begin + source.elements for source in sources])
        row = torch.Size(self.shape[1:]).numel()

        def rows(begin: int, end: int) -> "Tuple[Any, Any]":
            index = self._places(slice(begin * row, end * row))
            source = torch.bucketize(index, begins, right=True) - 1
            if not bool(((source >= 0) & (index < ends[source.clamp(min=0)])).all()):
                raise _no_copy(name)
            shape = (end - begin, *self.shape[1:]) if self.shape else ()
            return index.view(shape), source.view(shape)

        boxes = boxes_of(self.shape, rows, _MOST_BOXES)
        if boxes is None:
            raise BadDataError(
                f'the exporter gives "{name}", whose elements lie in more than {_MOST_BOXES} places; publish what the exporter gives, '
                "by from_stream"
            )
        for box in boxes:
            source = sources[box.source]
            start = box.start - source.begin
            yield Piece(name, number, self.dtype, self.shape, box.at, box.shape, source, start, box.strides)

    def _places(self, block: slice) -> Any:
        """The indexes of a stretch of elements."""
        digits = [digit[block].to(torch.int64) << number * _BITS for number, digit in enumerate(self.digits)]
        return functools.reduce(torch.add, digits)


def _blocks(elements: int) -> "Iterator[slice]":
    return (slice(begin, begin + _BLOCK) for begin in range(0, elements, _BLOCK))


def _digits(name: str, tensor: Any) -> Any:
    digits = torch.empty(tensor.numel(), dtype=torch.uint8)
    for block in _blocks(tensor.numel()):
        value = tensor.reshape(-1)[block].to(torch.float32) - 1
        own = value.clamp(0, _DIGIT).to(torch.uint8)
        if not torch.equal(own.to(torch.float32), value):
            raise _no_copy(name)
        digits[block] = own.cpu()
    return digits


def _no_copy(name: str) -> BadDataError:
    return BadDataError(
        f'the exporter gives "{name}", whose elements are no copies of parameters; publish what the exporter gives, by from_stream'
    )
