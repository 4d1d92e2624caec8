"""Boxes of a tensor of indexes in which the index goes by one step along each dimension. For what an exporter's values say, in
``_look``."""

from typing import Any, Iterator, NamedTuple, Sequence, Tuple

import torch

_FEW_RUNS = 64  # of a line; if there are more, elements may take turns
_MOST_TURNS = 8


class IndexBox(NamedTuple):
    """``start`` is the index of the first element of the box of ``shape`` at ``at``; ``strides``: the steps, all positive."""

    at: Tuple[int, ...]
    shape: Tuple[int, ...]
    start: int
    strides: Tuple[int, ...]


def boxes_of(lines: "Sequence[Tuple[Any, Any]]", most: int) -> "Tuple[Tuple[int, ...], list[IndexBox]] | None":
    """Few of them that are the whole of a tensor, and the shape that they are in: where elements take turns, as of a gate and an up
    projection, a dimension is split. None: there are more than ``most``.

    Args:
        lines: the indexes, and numbers of their sources, of the first line along each dimension. All other lines are taken to be cut
            in the same places, with the same steps.
    """
    shape: "Tuple[int, ...]" = ()
    boxes = [IndexBox((), (), 0, ())]
    for index, source in lines:
        turns = _turns(index)
        rows = (len(index) // turns, turns)
        cuts = list(_cuts(index.view(rows), source.view(rows))) if turns > 1 else list(_line_cuts(index, source))
        if len(boxes) * len(cuts) > most:
            return None
        first = int(index[0]) if shape else 0  # it is in the lines before, too
        shape += rows if turns > 1 else (len(index),)
        boxes = [
            IndexBox(a.at + b.at, a.shape + b.shape, a.start + b.start - first, a.strides + b.strides)
            for a in boxes
            for b in cuts
        ]
    return shape, boxes


def _cuts(index: Any, source: Any) -> "Iterator[IndexBox]":
    """Of a line in which ``index.shape[1]`` take turns."""
    for begin, length, step in _runs(_steps(index[0], source[0])):
        for cut in _line_cuts(index[:, begin], source[:, begin]):
            yield IndexBox((*cut.at, begin), (*cut.shape, length), cut.start, (*cut.strides, step))


def _line_cuts(index: Any, source: Any) -> "Iterator[IndexBox]":
    for begin, length, step in _runs(_steps(index, source)):
        yield IndexBox((begin,), (length,), int(index[begin]), (step,))


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


def _steps(index: Any, source: Any) -> Any:
    """From each element to the next one; 0: the next one is another's, or lies before."""
    step = index.diff()
    return torch.where((source.diff() == 0) & (step > 0), step, 0)


def _runs(steps: Any) -> "Iterator[Tuple[int, int, int]]":
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
