"""Values that tell which element they stand in for: a digit of its index, or a proof of it. For ``_look`` and ``_recorded``."""

from typing import Any, Callable, NamedTuple

import torch

NO_DIGIT = -(1 << 15)
# An exporter may add one of these to each element: norms that Megatron centres at zero are HuggingFace's minus one.
SUMMANDS = (0, 1, -1)


class Digits(NamedTuple):
    """A way to write digits as values. ``write`` makes values of an int64 tensor of digits. ``read`` makes digits, int16, of float32
    values: NO_DIGIT where a value is none; where the exporter added to it, the digit and as much."""

    base: int
    write: "Callable[[Any], Any]"
    read: "Callable[[Any], Any]"

    def passes(self, end: int) -> int:
        """How many digits the indexes below ``end`` have."""
        number = 1
        while self.base**number < end:
            number += 1
        return number

    def value(self, number: int, index: Any, _: Any) -> Any:
        """That of the digit ``number`` of each index."""
        return self.write(index // self.base**number % self.base)


def _wide_value(digit: Any) -> Any:
    return (digit + _FIRST_NORMAL).to(torch.int16).view(torch.bfloat16)


def _wide_digit(value: Any) -> Any:
    rounded = value.to(torch.bfloat16)
    digit = rounded.view(torch.int16) - _FIRST_NORMAL
    return torch.where((rounded.to(torch.float32) == value) & (digit >= 0) & (digit < WIDE.base), digit, NO_DIGIT)


def _narrow_value(digit: Any) -> Any:
    return (digit + 1).to(torch.float32)


def _narrow_digit(value: Any) -> Any:
    digit = value.clamp(-1, NARROW.base + 1).to(torch.int16) - 1
    return torch.where((digit + 1).to(torch.float32) == value, digit, NO_DIGIT)


_FIRST_NORMAL = 1 << 7  # the bits of the smallest normal number of bfloat16
# Whatever is positive and normal in bfloat16. Sums are not exact.
WIDE = Digits(254 << 7, _wide_value, _wide_digit)
# 1 to 254: exact in every type of eight bits of precision, also after 1 is added or taken away.
NARROW = Digits(254, _narrow_value, _narrow_digit)


def proof(index: Any, dtype: Any) -> Any:
    """Negative numbers, which arithmetic and constants do not give by chance. Other elements' are others: with all bits of precision
    that float32 has, or with those that bfloat16 and float16 have between 2**-8 and 2**8."""
    return _fine(_hash(index)) if dtype == torch.float32 else _coarse(_hash(index))


def is_proof(value: Any, index: Any, summand: int, dtype: Any) -> Any:
    """Whether each value, of ``dtype``, is the proof of its index plus the summand, rounded to its dtype."""
    hashed = _hash(index)
    coarse, fine = _coarse(hashed).to(torch.float32) + summand, _fine(hashed) + summand
    return (value == coarse.to(dtype)) | (value == fine.to(dtype))


def _fine(hashed: Any) -> Any:
    return ((hashed & 0xFFFFFF) + 1).to(torch.float32) * -(2.0**-24)


def _coarse(hashed: Any) -> Any:
    return -((hashed & 0x7FF) + (119 << 7)).to(torch.int16).view(torch.bfloat16)


def _hash(index: Any) -> Any:
    mixed = index * -0x61C8864680B583EB
    return (mixed >> 29) ^ (mixed >> 47)
