"""What a loader does, element by element, found by values. record_registry.py holds recordings against it.

Every element of every tensor has a number. The real loader gets tensors of the numbers' digits, a digit in each pass, and
a check digit in the last one, so that a destination's elements name their source. Digits are 1 to 256, which all floating
types of 16 bits hold.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from lockstep.engine._recorder import Recording, TensorForm

Tensors = "dict[str, torch.Tensor]"
Load = "Callable[[Iterator[tuple[str, torch.Tensor]]], Any]"

NEVER, CONSTANT, COMPUTED = -1, -2, -3  # instead of an element's number
_WORDS = {NEVER: "nothing", CONSTANT: "a constant", COMPUTED: "something computed"}
_BASE = 256


class Numbers:
    """The numbers of all elements of some tensors."""

    def __init__(self, forms: "Sequence[TensorForm]") -> None:
        self._forms = forms
        self.first: "dict[str, int]" = {}
        self.count = 0
        for form in forms:
            self.first[form.name] = self.count
            self.count += _elements(form)
        self._digits = next(digits for digits in range(1, 8) if _BASE**digits >= self.count)

    def passes(self) -> "Iterator[Tensors]":
        """Tensors of digits, the lowest first, and of check digits."""
        for place in [*range(self._digits), None]:
            yield {form.name: self._values(form, place).reshape(form.shape).to(form.dtype) for form in self._forms}

    def read(self, values: torch.Tensor, sentinels: torch.Tensor) -> torch.Tensor:
        """The numbers that values [pass, ...] of a destination name; it was filled with sentinels [pass, ...] before."""
        read = torch.full(values.shape[1:], COMPUTED)
        digits = values.long() - 1
        numbers = sum(digits[place] * _BASE**place for place in range(self._digits))
        exact = ((values == values.long()) & (digits >= 0) & (digits < _BASE)).all(0) & (numbers < self.count)
        read = torch.where(exact & (digits[-1] == _check_digit(numbers)), numbers, read)
        read = torch.where((values == values[:1]).all(0), CONSTANT, read)
        return torch.where((values == sentinels).all(0), NEVER, read)

    def name(self, number: int) -> str:
        """The element with this number."""
        if number in _WORDS:
            return _WORDS[number]
        name = next(name for name, first in reversed(self.first.items()) if first <= number)
        return f"{name}[{number - self.first[name]}]"

    def _values(self, form: TensorForm, place: "int | None") -> torch.Tensor:
        numbers = torch.arange(_elements(form)) + self.first[form.name]
        return 1 + (_check_digit(numbers) if place is None else _digit(numbers, place))


def _digit(numbers: torch.Tensor, place: int) -> torch.Tensor:
    return numbers // _BASE**place % _BASE


def _check_digit(numbers: torch.Tensor) -> torch.Tensor:
    """Never the lowest digit, so that no element gives the same value in all passes."""
    mixed = (numbers * 2654435761 % 2**32) // 2**12
    return (_digit(numbers, 0) + 1 + mixed % (_BASE - 1)) % _BASE


def _elements(form: TensorForm) -> int:
    return torch.Size(form.shape).numel()


def sources(load: Load, destinations: "Mapping[str, torch.Tensor]", numbers: Numbers) -> Tensors:
    """The number of the source of every element of every destination, or what stands instead."""
    given = {name: tensor.clone() for name, tensor in destinations.items()}
    values: "dict[str, list[torch.Tensor]]" = {name: [] for name in destinations}
    sentinels: "dict[str, list[torch.Tensor]]" = {name: [] for name in destinations}
    for turn, tensors in enumerate(numbers.passes()):
        for name, tensor in destinations.items():
            sentinels[name].append(_fill(tensor, given[name], -2 - turn))
        load(iter(tensors.items()))
        for name, tensor in destinations.items():
            values[name].append(tensor.detach().double().clone())
    return {name: numbers.read(torch.stack(values[name]), torch.stack(sentinels[name])) for name in destinations}


def _fill(tensor: torch.Tensor, given: torch.Tensor, sentinel: int) -> torch.Tensor:
    """What is in a destination before a pass. Loaders read whole numbers, such as a map of experts, so these stay."""
    with torch.no_grad():
        tensor.data.copy_(torch.full_like(given, sentinel) if given.is_floating_point() else given)
    return tensor.detach().double().clone()


def faults(
    recording: Recording, found: Tensors, destinations: "Mapping[str, torch.Tensor]", numbers: Numbers
) -> "list[str]":
    """Where a recording says something else than what sources() found; what it computes is left to differences()."""
    said = {}
    lines = [f"{name} is no destination" for name in recording.pieces.keys() - destinations.keys()]
    for name, tensor in destinations.items():
        said[name] = torch.full(tensor.shape, NEVER)
        for piece in recording.pieces.get(name, []):
            box = tuple(slice(begin, begin + extent) for begin, extent in zip(piece.at, piece.shape))
            part = said[name][box]
            if part.shape != piece.shape or (part != NEVER).any():
                lines.append(f"{name}: the box at {piece.at} of {piece.shape} is outside, or written twice")
                continue
            part.copy_(_numbers_of(piece, numbers))
    for name, want in found.items():
        wrong = (said[name] != want) & (said[name] != COMPUTED)
        if wrong.any():
            at = tuple(wrong.nonzero()[0].tolist())
            lines.append(
                f"{name}{list(at)} and {int(wrong.sum()) - 1} more: recorded {numbers.name(int(said[name][at]))}, "
                f"is {numbers.name(int(want[at]))}"
            )
    return lines


def _numbers_of(piece: Any, numbers: Numbers) -> torch.Tensor:
    if piece.tensor is None or any(op[0] != "to" for op in piece.ops):
        return torch.tensor(CONSTANT if piece.tensor is None else COMPUTED)
    index = torch.full(piece.shape, numbers.first[piece.tensor] + piece.start)
    for dim, stride in enumerate(piece.strides):
        steps = torch.arange(piece.shape[dim]) * stride
        index += steps.reshape([-1 if other == dim else 1 for other in range(len(piece.shape))])
    return index


def differences(
    recording: Recording, load: Load, destinations: "Mapping[str, torch.Tensor]", forms: "Sequence[TensorForm]"
) -> "list[str]":
    """Where carrying out a recording on random values gives other bits than the real loader."""
    generator = torch.Generator().manual_seed(63)
    tensors = {form.name: torch.rand(form.shape, generator=generator).to(form.dtype) for form in forms}
    before = {name: tensor.clone() for name, tensor in destinations.items()}
    load(iter({name: tensor.clone() for name, tensor in tensors.items()}.items()))
    lines = []
    for name, tensor in destinations.items():
        want = before[name]
        for piece in recording.pieces.get(name, []):
            want[tuple(slice(begin, begin + extent) for begin, extent in zip(piece.at, piece.shape))] = _result(
                piece, tensors
            )
        if not torch.equal(want, tensor):
            lines.append(
                f"{name}: {int((want != tensor).sum())} elements have other values than what was recorded gives"
            )
    return lines


def _result(piece: Any, tensors: Tensors) -> torch.Tensor:
    if piece.tensor is None:
        return torch.full(piece.shape, piece.value)
    result = torch.as_strided(tensors[piece.tensor].flatten(), piece.shape, piece.strides, piece.start)
    for name, *arguments in piece.ops:
        result = result.to(getattr(torch, arguments[0])) if name == "to" else getattr(torch, name)(result, *arguments)
    return result
