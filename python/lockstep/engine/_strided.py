"""Arithmetic of strided copies, for the recorder: what becomes of a copy whose source was itself copied together.

A ``Copy`` moves element ``start + sum(i * from_stride)`` of something to element ``to + sum(i * to_stride)`` of a storage,
for all ``i`` within its dimensions. Numbers are elements.
"""

from dataclasses import dataclass, replace
from typing import Any, Iterator, NamedTuple, Sequence, Tuple

from lockstep.core.errors import BadDataError
from lockstep.core.tensors import contiguous_strides

Ints = Tuple[int, ...]
_MOST_PARTS = 1 << 20  # of one copy


class Dim(NamedTuple):
    """``extent`` steps."""

    extent: int
    to: int  # elements for a step where it goes
    source: int  # elements for a step where it comes from


@dataclass(frozen=True)
class Copy:
    """What a part of a storage was given.

    Attributes:
        dims: without those of one step.
        to: the first element there.
        tensor: the tensor that gives it; None: ``value`` does, or ``computed``.
        start: the first element of ``tensor``.
        ops: what is applied to each element, in order.
        computed: why no tensor, nor a constant, gives it.
    """

    dims: "Tuple[Dim, ...]"
    to: int
    tensor: "str | None" = None
    start: int = 0
    ops: "Tuple[Tuple[Any, ...], ...]" = ()
    value: "float | int" = 0
    computed: str = ""

    def after(self, ops: "Tuple[Tuple[Any, ...], ...]") -> "Copy":
        """The same, with more done to each element."""
        return replace(self, ops=self.ops + ops) if ops and not self.computed else self


def dims_of(shape: "Sequence[int]", to: "Sequence[int]", source: "Sequence[int]") -> "Tuple[Dim, ...]":
    """Of a copy between two views of one shape, outermost first where it goes; neighbours that continue one another are one."""
    dims = [Dim(*own) for own in zip(shape, to, source) if own[0] != 1]
    if len(dims) > 1:
        dims.sort(key=lambda dim: (-dim.to, -dim.source))
    merged: "list[Dim]" = []
    for dim in dims:
        outer = merged[-1] if merged else None
        if outer is not None and (outer.to, outer.source) == (dim.extent * dim.to, dim.extent * dim.source):
            merged[-1] = Dim(outer.extent * dim.extent, dim.to, dim.source)
        else:
            merged.append(dim)
    return tuple(merged)


def through(copy: Copy, dims: "Sequence[Dim]", to: int, start: int) -> "Iterator[Copy]":
    """A copy (``dims``, ``to``, ``start``) reads a storage of which ``copy`` gave a part: what of it is of that part, as copies from
    where the part came from."""
    digits = sorted(copy.dims, key=lambda dim: -dim.to)
    for inner, outer in zip(digits[1:], digits):
        if outer.to < inner.extent * inner.to:
            raise BadDataError("a copy whose parts lie between one another")
    budget = [_MOST_PARTS]
    for found, at, source in _solve(
        [dim for dim in dims if dim.extent != 1], to, start - copy.to, digits, copy.start, budget
    ):
        yield replace(copy, dims=tuple(sorted(found, key=lambda dim: -dim.to)), to=at, start=source)


_Found = Tuple["list[Dim]", int, int]


def _solve(
    dims: "list[Dim]", to: int, at: int, digits: "Sequence[Dim]", start: int, budget: "list[int]"
) -> "Iterator[_Found]":
    """``at`` plus the dimensions' steps, written in ``digits``: which steps have all digits within their extents. The largest digit first;
    a dimension that carries from one digit into the next is cut where it does."""
    budget[0] -= 1
    if budget[0] < 0:
        raise BadDataError(f"a copy of more than {_MOST_PARTS} parts")
    free = [dim for dim in dims if dim.source == 0]
    dims = [dim for dim in dims if dim.source != 0]
    if not digits:  # the part is one element
        if len(dims) > 1:
            yield from _each(dims, free, to, at, digits, start, budget)
            return
        for dim in dims:
            step, left = divmod(-at, dim.source)
            if left or not 0 <= step < dim.extent:
                return
            to, at = to + step * dim.to, 0
        if at == 0:
            yield free, to, start
        return
    unit = digits[0].to
    low = sorted((dim for dim in dims if dim.source < unit), key=lambda dim: -dim.source)
    high = [dim for dim in dims if dim.source >= unit]
    if any(dim.source % unit != 0 for dim in high):
        yield from _each(dims, free, to, at, digits, start, budget)
        return
    rest = at % unit
    if rest + _reach(low) >= unit:
        yield from _carry(low, high + free, to, at, digits, start, budget)
        return
    first, extent = at // unit, digits[0].extent
    if first >= extent or first + _reach(high) // unit < 0:
        return
    if first < 0 or first + _reach(high) // unit >= extent:
        yield from _clip(high, low + free, to, at, digits, start, budget)
        return
    source = digits[0].source
    found = [Dim(dim.extent, dim.to, dim.source // unit * source) for dim in high if dim.extent != 1]
    for inner, where, begun in _solve(low, to, rest, digits[1:], start + first * source, budget):
        yield [*found, *free, *inner], where, begun


def _reach(dims: "Sequence[Dim]") -> int:
    return sum((dim.extent - 1) * dim.source for dim in dims)


def _clip(
    high: "list[Dim]", others: "list[Dim]", to: int, at: int, digits: "Sequence[Dim]", start: int, budget: "list[int]"
) -> "Iterator[_Found]":
    """The largest of ``high`` reaches beyond the first digit's extent: the steps that do not, and each that does in part."""
    unit, extent = digits[0].to, digits[0].extent
    dim = max(high, key=lambda own: own.source)
    left = [own for own in high if own is not dim]
    step, first, more = dim.source // unit, at // unit, _reach(left) // unit
    touches = range(max(0, -((first + more) // step)), min(dim.extent, (extent - 1 - first) // step + 1))
    begin, end = max(touches.start, -(first // step)), min(touches.stop, (extent - 1 - more - first) // step + 1)
    if begin < end:
        inside = [Dim(end - begin, dim.to, dim.source)] if end - begin > 1 else []
        moved, begun = to + begin * dim.to, at + begin * dim.source
        yield from _solve([*inside, *left, *others], moved, begun, digits, start, budget)
    in_part = (*range(touches.start, begin), *range(end, touches.stop)) if begin < end else touches
    for k in in_part:
        yield from _solve([*left, *others], to + k * dim.to, at + k * dim.source, digits, start, budget)


def _carry(
    low: "list[Dim]", others: "list[Dim]", to: int, at: int, digits: "Sequence[Dim]", start: int, budget: "list[int]"
) -> "Iterator[_Found]":
    """The largest of ``low`` passes the unit of the first digit: before the first pass, whole periods, and after the last."""
    unit = digits[0].to
    dim, lower = low[0], low[1:]
    rest = at % unit
    if unit % dim.source != 0 or rest % dim.source + _reach(lower) >= dim.source:
        yield from _each([dim], lower + others, to, at, digits, start, budget)
        return
    period = unit // dim.source
    head = min(dim.extent, (period - rest // dim.source) % period)
    whole = (dim.extent - head) // period
    tail = dim.extent - head - whole * period
    begin = 0
    for own in (
        [Dim(head, dim.to, dim.source)],
        [Dim(whole, dim.to * period, unit), Dim(period if whole else 0, dim.to, dim.source)],
        [Dim(tail, dim.to, dim.source)],
    ):
        steps = own[0].extent * (own[1].extent if len(own) == 2 else 1)
        if steps:
            kept = [one for one in own if one.extent != 1]
            yield from _solve(
                [*kept, *lower, *others], to + begin * dim.to, at + begin * dim.source, digits, start, budget
            )
        begin += steps


def _each(
    dims: "list[Dim]", others: "list[Dim]", to: int, at: int, digits: "Sequence[Dim]", start: int, budget: "list[int]"
) -> "Iterator[_Found]":
    """Step by step of the largest of ``dims``."""
    dim = max(dims, key=lambda own: own.source)
    left = [own for own in dims if own is not dim]
    for step in range(dim.extent):
        yield from _solve([*left, *others], to + step * dim.to, at + step * dim.source, digits, start, budget)


@dataclass(frozen=True)
class Box:
    """A box of a tensor's elements: where it begins, its extents, and the copy's steps along each dimension."""

    at: Ints
    shape: Ints
    start: int
    strides: Ints
    copy: Copy

    def cut(self, dim: int, begin: int, end: int) -> "Box":
        """What lies at [begin, end) of a dimension."""
        shift = begin - self.at[dim]
        return Box(
            (*self.at[:dim], begin, *self.at[dim + 1 :]),
            (*self.shape[:dim], end - begin, *self.shape[dim + 1 :]),
            self.start + shift * self.strides[dim],
            self.strides,
            self.copy,
        )

    def meets(self, other: "Box") -> bool:
        """Whether they have an element in common."""
        return all(a < b + n and b < a + m for a, m, b, n in zip(self.at, self.shape, other.at, other.shape))

    def minus(self, other: "Box") -> "Iterator[Box]":
        """Boxes of what is not in ``other``."""
        if not self.meets(other):
            yield self
            return
        left = self
        for dim, (begin, extent) in enumerate(zip(other.at, other.shape)):
            own_begin, own_end = left.at[dim], left.at[dim] + left.shape[dim]
            if own_begin < begin:
                yield left.cut(dim, own_begin, begin)
            if begin + extent < own_end:
                yield left.cut(dim, begin + extent, own_end)
            left = left.cut(dim, max(own_begin, begin), min(own_end, begin + extent))


def boxes_of(copy: Copy, shape: Ints, strides: Ints, offset: int) -> "Iterator[Box]":
    """What ``copy`` gave of a tensor that lies so in the storage."""
    linear = contiguous_strides(shape)
    whole = _one_box(copy, shape, linear, offset) if tuple(strides) == linear else None
    if whole is not None:
        yield whole
        return
    dims = [Dim(*own) for own in zip(shape, linear, strides)]  # each by itself: a box is cut along them
    for part in through(copy, dims, 0, offset):
        yield from _boxes(part, part.dims, part.to, part.start, shape, linear)


def _one_box(copy: Copy, shape: Ints, linear: Ints, offset: int) -> "Box | None":
    """The same, of a contiguous tensor, if it is a single box, as it mostly is."""
    at, left = [], copy.to - offset
    if not shape or not 0 <= left < shape[0] * linear[0]:
        return None
    for stride in linear:
        at.append(left // stride)
        left %= stride
    extents, steps, dims = [1] * len(shape), [0] * len(shape), list(copy.dims)
    for own in reversed(range(len(shape))):
        if not dims or dims[-1].to != linear[own] or shape[own] == 1:
            continue
        dim = dims.pop()
        if dim.extent > shape[own] and dim.extent % shape[own] == 0:
            dims.append(Dim(dim.extent // shape[own], dim.to * shape[own], dim.source * shape[own]))
            dim = Dim(shape[own], dim.to, dim.source)
        if at[own] + dim.extent > shape[own]:
            return None
        extents[own], steps[own] = dim.extent, dim.source
    return None if dims else Box(tuple(at), tuple(extents), copy.start, tuple(steps), copy)


def _boxes(part: Copy, dims: "Sequence[Dim]", to: int, start: int, shape: Ints, linear: Ints) -> "Iterator[Box]":
    at: "list[int]" = []
    left = to
    for stride in linear:
        at.append(left // stride)
        left %= stride
    extents, steps = [1] * len(shape), [0] * len(shape)
    for dim in dims:
        # The tensor's innermost dimension whose step the dimension's step is a multiple of.
        own = next(k for k, stride in enumerate(linear) if shape[k] != 1 and stride <= dim.to)
        step = dim.to // linear[own]
        inside = at[own] + (dim.extent - 1) * step < shape[own]
        if dim.to % linear[own] == 0 and step == 1 and inside and extents[own] == 1:
            extents[own], steps[own] = dim.extent, dim.source
            continue
        outer, inner = _split(dim, linear[own - 1] if own else 0) if not inside and extents[own] == 1 else (None, None)
        rest = [other for other in dims if other is not dim]
        if outer is not None and inner is not None and at[own] == 0:
            yield from _boxes(part, [outer, inner, *rest], to, start, shape, linear)
            return
        for k in range(dim.extent):
            yield from _boxes(part, rest, to + k * dim.to, start + k * dim.source, shape, linear)
        return
    yield Box(tuple(at), tuple(extents), start, tuple(steps), part)


def _split(dim: Dim, period: int) -> "Tuple[Dim | None, Dim | None]":
    """A dimension that passes over ``period`` elements, as whole periods and what is within one."""
    if period == 0 or period % dim.to != 0 or dim.extent % (period // dim.to) != 0:
        return None, None
    inner = period // dim.to
    return Dim(dim.extent // inner, period, dim.source * inner), Dim(inner, dim.to, dim.source)


def last_wins(boxes: "Sequence[Box]") -> "list[Box]":
    """What is left of boxes that were written one after another."""
    kept: "list[Box]" = []
    for group in _apart(boxes):
        over: "list[Box]" = []
        for box in reversed(group):
            parts = [box]
            for other in over:
                parts = [left for part in parts for left in part.minus(other)]
            over += parts
        kept += over
    return kept


def _apart(boxes: "Sequence[Box]") -> "Iterator[list[Box]]":
    """Groups that have nothing in common along the first dimension, each in the order of writing."""
    if len(boxes) < 2 or not boxes[0].at:
        yield list(boxes)
        return
    group: "list[int]" = []
    end = 0
    for index in sorted(range(len(boxes)), key=lambda k: boxes[k].at[0]):
        if group and boxes[index].at[0] >= end:
            yield [boxes[k] for k in sorted(group)]
            group, end = [], 0
        group.append(index)
        end = max(end, boxes[index].at[0] + boxes[index].shape[0])
    yield [boxes[k] for k in sorted(group)]
