"""Values that tell which element they stand in for: a digit of its index, or a proof of it. For ``_look`` and ``_recorded``."""

from typing import Any, Callable, NamedTuple, Sequence

import torch

UNIT_BITS = 14
UNIT = 1 << UNIT_BITS  # indexes; those of a source begin at a multiple of it


class Digits(NamedTuple):
    """A way to write digits as values of bfloat16. ``bits`` of a digit divide those of a unit.

    ``write`` makes values of int64 digits. ``read`` makes digits of values; where the exporter added to a value, so is added to the
    digit. A value that is no digit's gives any number.
    """

    bits: int
    write: "Callable[[Any], Any]"
    read: "Callable[[Any], Any]"

    def passes(self, end: int) -> int:
        """How many digits the indexes below ``end`` have."""
        return -(-(end - 1).bit_length() // self.bits)

    def indexes(self, values: "Sequence[Any]", summand: int) -> Any:
        """Those that the values of each digit tell; -1: of no element."""
        index, known = 0, True
        for number, value in enumerate(values):
            digit = self.read(value) - summand
            known = known & (digit >= 0) & (digit < 1 << self.bits)
            index = index | digit << number * self.bits
        return torch.where(torch.as_tensor(known), index, -1)

    def values(self, number: int, begin: int, end: int, _: Any, device: Any) -> Any:
        """The values of that digit of the indexes from ``begin``."""
        units = _units(begin, end, device)
        shift, mask = number * self.bits, (1 << self.bits) - 1
        if shift < UNIT_BITS:
            digits = _offsets(device) >> shift & mask
        else:
            digits = units >> shift - UNIT_BITS & mask
        return _cut(self.write(digits).expand(len(units), UNIT), begin, end)


_FIRST_NORMAL = 1 << 7  # the bits of the smallest normal number of bfloat16
# The positive numbers of bfloat16 from the smallest normal one. Sums are not exact.
WIDE = Digits(
    14,
    lambda digit: (digit + _FIRST_NORMAL).to(torch.int16).view(torch.bfloat16),
    lambda value: value.view(torch.int16).to(torch.int64) - _FIRST_NORMAL,
)
# 1 to 128: exact in every type of eight bits of precision, also after 1 is added or taken away.
NARROW = Digits(7, lambda digit: (digit + 1).to(torch.bfloat16), lambda value: value.to(torch.int64) - 1)


def wide_proofs(begin: int, end: int, dtype: Any, device: Any) -> Any:
    """Numbers of either sign and of every exponent, with all bits that the dtype has: what is computed of them is something else."""
    bits = _hashes(begin, end, device)
    if dtype == torch.float32:
        return _normal(bits, 23).view(torch.float32)
    return _normal((bits >> 16).to(torch.int16), 7).view(torch.bfloat16)


def narrow_proofs(begin: int, end: int, dtype: Any, device: Any) -> Any:
    """Numbers that float16 has, too, and of which a sum with 1 or -1 still tells most."""
    bits = _hashes(begin, end, device)
    if dtype == torch.float32:
        return (bits >> 8).to(torch.float32) * 2.0**-23
    bits = (bits >> 16).to(torch.int16)
    return (bits & -0x8000 | (bits & 0x7FF) + (119 << 7)).view(torch.bfloat16)  # 2**-8 and more, below 2**8


def _normal(bits: Any, exponent: int) -> Any:
    """With an exponent, from that bit on, that is neither the least nor the greatest: its lowest bit is not the next one."""
    lowest = 1 << exponent
    return bits & ~lowest | ~bits >> 1 & lowest


def _hashes(begin: int, end: int, device: Any) -> Any:
    units, offsets = _mixed(_units(begin, end, device) + UNIT), _mixed(_offsets(device))
    return _cut((units ^ offsets) * -0x61C88647, begin, end)


def _mixed(number: Any) -> Any:
    mixed = (number + 1) * -0x61C8864680B583EB
    return ((mixed >> 29) ^ (mixed >> 47)).to(torch.int32)


def _units(begin: int, end: int, device: Any) -> Any:
    return torch.arange(begin >> UNIT_BITS, (end - 1 >> UNIT_BITS) + 1, device=device)[:, None]


def _offsets(device: Any) -> Any:
    return torch.arange(UNIT, device=device)[None]


def _cut(units: Any, begin: int, end: int) -> Any:
    skipped = begin & UNIT - 1
    return units.reshape(-1)[skipped : skipped + end - begin]
