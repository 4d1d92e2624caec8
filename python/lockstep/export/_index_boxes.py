"""Boxes of a tensor of indexes in which the index goes by one step along each dimension. For what an exporter's values say, in
``_look``."""

from typing import Any, Callable, Iterator, NamedTuple, Sequence, Tuple

import torch

_BLOCK = 1 << 22  # elements that are looked at together
_FEW_RUNS = 64  # of a line; if there are more, elements may take turns
_MOST_TURNS = 8


class IndexBox(NamedTuple):
    """``start`` is the index of the first element of the box of ``shape`` at ``at``; ``strides``: the steps. All its elements have
    one ``source``."""

    at: Tuple[int, ...]
    shape: Tuple[int, ...]
    start: int
    strides: Tuple[int, ...]
    source: int


def likely_boxes(lines: "Sequence[Tuple[Any, Any]]", most: int) -> "Tuple[Tuple[int, ...], list[IndexBox]] | None":
    """As ``boxes_of``, by the indexes and sources of the first line along each dimension: right if all other lines are cut as the first.
    ``source`` is -1.

    Also the shape that the boxes are in: where elements take turns, as of a gate and an up projection, a dimension is split.
    """
    shape: "list[int]" = []
    boxes = [IndexBox((), (), 0, (), -1)]
    for index, source in lines:
        turns = _turns(index)
        own_shape = (len(index),) if turns == 1 else (len(index) // turns, turns)
        own = list(_boxes(index.view(own_shape), source.view(own_shape)))
        if len(boxes) * len(own) > most:
            return None
        first = int(index[0]) if shape else 0  # it is in the lines before, too
        shape += own_shape
        boxes = [
            IndexBox(a.at + b.at, a.shape + b.shape, a.start + b.start - first, a.strides + b.strides, -1)
            for a in boxes
            for b in own
        ]
    return tuple(shape), boxes


def _turns(index: Any) -> int:
    """How many take turns in a line, so that each has one step."""
    if len(index) <= _FEW_RUNS or len(list(_runs(index.diff().clamp(min=0)))) <= _FEW_RUNS:
        return 1
    for turns in range(2, _MOST_TURNS + 1):
        if len(index) % turns == 0:
            step = index[turns:] - index[:-turns]
            if 2 * int((step == step.mode().values).sum()) > len(step):
                return turns
    return 1


def boxes_of(
    shape: "Tuple[int, ...]", rows: "Callable[[int, int], Tuple[torch.Tensor, torch.Tensor]]", most: int
) -> "list[IndexBox] | None":
    """Few of them that are the whole of a tensor of ``shape``, so that each element is in one. Steps are positive. None: there are
    more than ``most``.

    Args:
        shape: with a dimension at least, and elements.
        rows: rows(begin, end) gives indexes and sources of these rows, along the first dimension.
    """
    height = shape[0]
    at_once = max(2, _BLOCK * height // torch.Size(shape).numel())
    done: "list[IndexBox]" = []
    last: "dict[Tuple[object, ...], IndexBox]" = {}  # boxes that reach the block's begin, by all but their rows
    for begin in range(0, height, at_once):
        end = min(height, begin + at_once)
        now: "dict[Tuple[object, ...], IndexBox]" = {}
        for box in _boxes(*rows(begin, end)):
            if len(done) + len(now) + len(last) > most:
                return None
            own = box._replace(at=(box.at[0] + begin, *box.at[1:]))
            before = last.get(_beside(own)) if own.at[0] == begin else None
            joined = None if before is None else _joined(before, own)
            if joined is not None:
                del last[_beside(own)]
                own = joined
            if own.at[0] + own.shape[0] == end:
                now[_beside(own)] = own
            else:
                done.append(own)
        done += last.values()
        last = now
    return done + list(last.values())


def _beside(box: IndexBox) -> "Tuple[object, ...]":
    return box.at[1:], box.shape[1:], box.strides[1:], box.source


def _joined(above: IndexBox, below: IndexBox) -> "IndexBox | None":
    """Both as one, if the step goes on."""
    rows, more = above.shape[0], below.shape[0]
    step = above.strides[0] if rows > 1 else below.start - above.start
    if step <= 0 or above.start + rows * step != below.start or (more > 1 and below.strides[0] != step):
        return None
    return above._replace(shape=(rows + more, *above.shape[1:]), strides=(step, *above.strides[1:]))


def _boxes(index: torch.Tensor, source: torch.Tensor) -> "Iterator[IndexBox]":
    if index.dim() == 0:
        yield IndexBox((), (), int(index), (), int(source))
        return
    step = _steps(index, source, -1)
    alike = step.reshape(index[..., 0].numel(), step.shape[-1])
    if bool((alike == alike[:1]).all()):
        for begin, length, by in _runs(alike[0]):
            for box in _boxes(index[..., begin], source[..., begin]):
                yield IndexBox((*box.at, begin), (*box.shape, length), box.start, (*box.strides, by), box.source)
        return
    if index.dim() > 2:
        for row in range(len(index)):
            for box in _boxes(index[row], source[row]):
                yield IndexBox((row, *box.at), (1, *box.shape), box.start, (1, *box.strides), box.source)
        return
    rows = step.reshape(step.shape[0], -1)
    differ = (rows[1:] != rows[:-1]).any(1).nonzero().reshape(-1).tolist()
    begins = [0, *(row + 1 for row in differ)]
    for begin, end in zip(begins, [*begins[1:], len(rows)]):
        for box in _boxes(index[begin:end], source[begin:end]):
            yield box._replace(at=(box.at[0] + begin, *box.at[1:]))


def _steps(index: torch.Tensor, source: torch.Tensor, dim: int) -> torch.Tensor:
    """From each element to the next one along a dimension; 0: the next one is another's, or lies before."""
    step = index.diff(dim=dim)
    return torch.where((source.diff(dim=dim) == 0) & (step > 0), step, 0)


def _runs(steps: torch.Tensor) -> "Iterator[Tuple[int, int, int]]":
    """Stretches of one step, as (begin, length, step). One of a single element has step 1."""
    last = len(steps)
    changes = (steps.diff() != 0).nonzero().reshape(-1).tolist()
    begin = 0
    for end, by in ((place, int(steps[place])) for place in (*changes, last - 1)) if last else ():
        if begin > end:  # the run before took this element's step for its own end
            continue
        if by == 0:
            for single in range(begin, end + 1):
                yield single, 1, 1
            begin = end + 1
            continue
        yield begin, end - begin + 2, by
        begin = end + 2
    for single in range(begin, last + 1):
        yield single, 1, 1
