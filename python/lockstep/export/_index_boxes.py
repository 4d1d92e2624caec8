"""Boxes of a tensor of indexes in which the index goes by one step along each dimension. For what an exporter's values say, in
``_look``."""

from typing import Callable, Iterator, NamedTuple, Tuple

import torch

_BLOCK = 1 << 22  # elements that are looked at together


class IndexBox(NamedTuple):
    """``start`` is the index of the first element of the box of ``shape`` at ``at``; ``strides``: the steps. All its elements have
    one ``source``."""

    at: Tuple[int, ...]
    shape: Tuple[int, ...]
    start: int
    strides: Tuple[int, ...]
    source: int


def likely_boxes(
    shape: "Tuple[int, ...]", line: "Callable[[Tuple[int | slice, ...]], Tuple[torch.Tensor, torch.Tensor]]", most: int
) -> "list[IndexBox] | None":
    """As ``boxes_of``, by few of the elements: right if lines beside one another are cut in the same places.

    Args:
        line: gives indexes and sources of the elements that a tensor of ``shape`` has there.
    """
    boxes: "list[IndexBox]" = []

    def cut(dims: int, rest: "Tuple[int, ...]", last: "list[Tuple[int, int, int]]") -> bool:
        """Boxes of what the first ``dims`` dimensions have at ``rest``; ``last``: the runs of the others."""
        if dims == 0:
            index, source = line(rest)
            at, sizes, strides = zip(*last) if last else ((), (), ())
            boxes.append(IndexBox(at, sizes, int(index), strides, int(source)))
            return len(boxes) <= most
        index, source = line((*(0,) * (dims - 1), slice(None), *rest))
        steps = _steps(index, source, 0)
        return all(cut(dims - 1, (run[0], *rest), [run, *last]) for run in _runs(steps))

    return boxes if cut(len(shape), (), []) else None


def boxes_of(
    shape: "Tuple[int, ...]", rows: "Callable[[int, int], Tuple[torch.Tensor, torch.Tensor]]", most: int
) -> "list[IndexBox] | None":
    """Few of them that are the whole of a tensor of ``shape``, so that each element is in one. Steps are positive. None: there are
    more than ``most``.

    Args:
        rows: rows(begin, end) gives indexes and sources of these rows, along the first dimension, or of a scalar.
    """
    height = shape[0] if shape else 1
    if torch.Size(shape).numel() == 0:
        return []
    at_once = max(2, _BLOCK * height // torch.Size(shape).numel())
    done: "list[IndexBox]" = []
    last: "dict[Tuple[object, ...], IndexBox]" = {}  # boxes that reach the block's begin, by all but their rows
    for begin in range(0, height, at_once):
        end = min(height, begin + at_once)
        now: "dict[Tuple[object, ...], IndexBox]" = {}
        for box in _boxes(*rows(begin, end)):
            if len(done) + len(now) + len(last) > most:
                return None
            own = box._replace(at=(box.at[0] + begin, *box.at[1:])) if shape else box
            before = last.get(_beside(own)) if own.at[:1] == (begin,) else None
            joined = None if before is None else _joined(before, own)
            if joined is not None:
                del last[_beside(own)]
                own = joined
            if shape and own.at[0] + own.shape[0] == end:
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
