"""The part of a model whose HuggingFace tensors a trainer's own exporter makes of its parameters: of what, is recorded once, by values. For
``megatron``."""

import contextlib
import functools
import hashlib
from typing import Any, Callable, Iterator, Mapping, Sequence, Tuple

import torch

from lockstep.core.agreement import all_gather, gather, made_by, rank_of
from lockstep.core.delayed_interrupt import delayed_interrupt
from lockstep.core.errors import BadDataError
from lockstep.core.tensors import CheckpointTensor
from lockstep.export._bridges import Exporter, versions
from lockstep.export._index_values import NARROW, UNIT, UNIT_BITS, WIDE, Digits, narrow_proofs, wide_proofs
from lockstep.export._look import BLOCK, Look, Piece, Source, Values
from lockstep.export._parts import (
    Box,
    Frozen,
    FrozenTensors,
    Shard,
    ShardsPart,
    any_requires_gradient,
)
from lockstep.export._plan_cache import cache_file, load, save


class RecordedPart(ShardsPart):
    """Tensors of which an exporter makes HuggingFace's. It runs some times, on all ranks together.

    Args:
        tensors: gives this rank's tensors that the exporter may read, by name; called at each publish. Their values are what they
            were afterwards.
        prepare: makes them whole; called at each publish.
        exporter: what gives HuggingFace's tensors, on every rank the same names in the same order.
        convert: float32 tensors may be rounded to the bfloat16 that the exporter gives.
        frozen: as for ``lockstep.fsdp``, by HuggingFace names.
    """

    def __init__(
        self,
        tensors: "Callable[[], Mapping[str, Any]]",
        prepare: "Callable[[], None]",
        exporter: Exporter,
        *,
        convert: bool,
        frozen: Frozen,
    ) -> None:
        super().__init__(self._views, self._shard, FrozenTensors(frozen), converts=convert)
        self._tensors, self._prepare, self._exporter = tensors, prepare, exporter
        self._pieces: "dict[str, Piece]" = {}  # this rank's, each a tensor of its own name
        self._now: "Mapping[str, Any]" = {}  # what is read

    def open(self, group: Any, on_agent_host: bool) -> None:
        """BadDataError: a HuggingFace tensor is not made of parameters, comes twice, or not in every pass; the text names it."""
        tensors: "dict[str, Any]" = {}

        def prepare() -> None:
            self.prepare()
            tensors.update(self._sources())

        gather(prepare, group)
        mine = _Recording(self._exporter, tensors, group, on_agent_host).pieces()
        self._pieces = {piece.name: piece for piece in sorted(mine, key=lambda piece: piece.number)}

    def prepare(self) -> None:
        self._prepare()

    def trains(self) -> bool:
        return any_requires_gradient(self._sources().items())

    def _sources(self) -> "dict[str, Any]":
        tensors = {
            name: tensor for name, tensor in self._tensors().items() if tensor.is_floating_point() and tensor.numel()
        }
        for name, tensor in tensors.items():
            if type(tensor.data) is not torch.Tensor:
                raise BadDataError(
                    f'parameter "{name}" is a {type(tensor.data).__name__}, no plain tensor; publish by from_stream'
                )
        return tensors

    def _views(self) -> "Iterator[Tuple[str, Any]]":
        self._now = self._sources()
        for name, own in self._pieces.items():
            whole, source = self._now.get(own.source.name), own.source
            if (
                whole is None
                or (tuple(whole.shape), whole.dtype, whole.is_contiguous()) != (source.shape, source.dtype, True)
                or not whole.untyped_storage().nbytes()
            ):
                raise BadDataError(
                    f'parameter "{source.name}" has no memory, or is not what it was when the publisher was made; publish while the model '
                    "has its weights, or make a new publisher"
                )
            yield name, own.of(whole.detach())
        self._now = {}

    def _shard(self, name: str, tensor: Any) -> Shard:
        own = self._pieces[name]
        zeros = (0,) * len(own.shape)
        made = CheckpointTensor(own.tensor, own.whole, zeros, own.at, own.shape, own.view)
        box = Box(zeros, zeros, own.shape)
        return Shard(name, own.dtype, own.shape, own.shape, [box], self._is_frozen(name, tensor), [made])

    def _is_frozen(self, name: str, _: Any) -> bool:
        own = self._pieces[name]
        return self.frozen.has(own.tensor, self._now[own.source.name])


class _Recording:
    """The passes of one recording. All ranks make it together."""

    def __init__(self, exporter: Exporter, tensors: "Mapping[str, Any]", group: Any, on_agent_host: bool) -> None:
        self._exporter, self._tensors, self._group, self._rank = exporter, tensors, group, rank_of(group)
        own = [
            (name, str(tensor.dtype).rpartition(".")[2], tuple(tensor.shape), tensor.is_contiguous())
            for name, tensor in tensors.items()
        ]
        ranks = all_gather((own, on_agent_host), group)
        self._looking = [rank for rank, (_, here) in enumerate(ranks) if here] or list(range(len(ranks)))
        self._sources: "list[Source]" = []
        self._end = UNIT  # no source has an element 0
        for rank, (entries, _) in enumerate(ranks):
            for name, dtype, shape, contiguous in entries:
                self._sources.append(Source(rank, name, getattr(torch, dtype), shape, contiguous, self._end))
                self._end += -(-self._sources[-1].elements >> UNIT_BITS) << UNIT_BITS
        self._all_hold_wide = all(source.dtype != torch.float16 for source in self._sources)
        self._stored = made_by(0, exporter.stored, group)
        self._file = cache_file([versions(), ranks, self._rank])
        self._fill: "Callable[[Sequence[Source], Values], None]"

    def pieces(self) -> "list[Piece]":
        """What this rank copies."""
        with torch.no_grad():
            with _stand_ins(self._tensors) as self._fill:
                look = self._known() or self._found()
            if look.repeats():
                gather(look.check_repeats, self._group)
        found = [made_by(rank, look.pieces, self._group) for rank in self._looking]
        return [piece for some in found for piece in some if piece.source.rank == self._rank]

    def _known(self) -> "Look | None":
        """By what was found before, if it is still true."""
        pieces = load(self._file, self._sources) if self._rank in self._looking else []
        if any(all_gather(pieces is None, self._group)):
            return None
        look = self._new_look()
        look.expect(pieces or ())
        return look if self._proves(look) else None

    def _found(self) -> Look:
        look = self._new_look()
        whole = self._all_hold_wide and self._finds(look, WIDE, (0,))
        if not whole:  # values are of float16, or an exporter computes
            whole = self._finds(look, NARROW, (1, -1) if self._all_hold_wide else (0, 1, -1))

        def keep() -> None:
            if whole and self._rank in self._looking:
                save(self._file, look.pieces(), self._sources)

        gather(keep, self._group)
        return look

    def _finds(self, look: Look, digits: Digits, summands: "Sequence[int]") -> bool:
        for number in range(digits.passes(self._end)):
            self._pass(functools.partial(digits.values, number), look.take)
        gather(lambda: look.find(digits, summands), self._group)
        return self._proves(look)

    def _proves(self, look: Look) -> bool:
        adds = any(all_gather(look.adds(), self._group))
        proofs = wide_proofs if self._all_hold_wide and not adds else narrow_proofs
        self._pass(proofs, lambda: look.check(proofs))
        names = all_gather(hashlib.sha256("\0".join(look.names).encode()).digest(), self._group)
        for rank, own in enumerate(names):
            if own != names[0]:
                raise BadDataError(
                    f"the exporter gives other tensors on rank {rank} than on rank 0; every rank must give the same names in the same "
                    "order"
                )
        return not any(gather(look.unproved, self._group))

    def _pass(self, values: Values, look: "Callable[[], None]") -> None:
        own = [source for source in self._sources if source.rank == self._rank]
        gather(lambda: self._fill(own, values), self._group)
        gather(look, self._group)

    def _new_look(self) -> Look:
        return Look(self._rank, self._looking, self._sources, self._exporter, self._stored)


@contextlib.contextmanager
def _stand_ins(tensors: "Mapping[str, Any]") -> "Iterator[Callable[[Sequence[Source], Values], None]]":
    """What it gives fills others in place of the tensors' data, which tell their indexes."""
    data = {name: tensor.data for name, tensor in tensors.items()}

    def fill(sources: "Sequence[Source]", values: Values) -> None:
        for source in sources:
            tensor = tensors[source.name]
            if tensor.data_ptr() == data[source.name].data_ptr():
                tensor.data = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            flat = tensor.data.view(-1)
            for begin in range(0, source.elements, BLOCK):
                end = min(source.elements, begin + BLOCK)
                flat[begin:end].copy_(values(source.begin + begin, source.begin + end, tensor.dtype, tensor.device))

    def restore() -> None:
        for name, tensor in tensors.items():
            tensor.data = data[name]

    try:
        yield fill
    finally:
        try:
            with delayed_interrupt():
                restore()
        finally:
            restore()  # an interrupt may have come before it could be delayed
