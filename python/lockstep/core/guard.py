"""Guard: what every version is to keep before it is committed. For Publisher's ``guard``."""

import dataclasses
import json
import math
from typing import Tuple

from lockstep.core.errors import BadDataError


@dataclasses.dataclass(frozen=True)
class Guard:
    """What a version is to keep. The agent compares it with the version before, and ``publish`` waits for that. Where the version
    breaks the guard, ``publish`` raises BadDataError with the names of tensors, no receiver gets it, and the next version is
    compared with the one before. Publishers that all ranks make together raise on every rank.

    Attributes:
        nonfinite: "refuse": a version with NaN or Inf; "count": they are counted only.
        density: the least and the most share of elements that change. A first version has none.
        largest_step: the most that an element may change by; None: any amount.
    """

    nonfinite: str = "refuse"
    density: Tuple[float, float] = (0.0, 1.0)
    largest_step: "float | None" = None

    def __post_init__(self) -> None:
        if self.nonfinite not in ("refuse", "count"):
            raise BadDataError(f'guard: nonfinite is "refuse" or "count", not {self.nonfinite!r}')
        least, most = self.density
        if not 0 <= least <= most <= 1:
            raise BadDataError(f"guard: density is (least, most) with 0 <= least <= most <= 1, not {self.density!r}")
        if self.largest_step is not None and not (self.largest_step >= 0 and math.isfinite(self.largest_step)):
            raise BadDataError(f"guard: largest_step is a number from 0, not {self.largest_step!r}")

    def text(self) -> str:
        """As the agent reads it."""
        step = {} if self.largest_step is None else {"largest_step": self.largest_step}
        return json.dumps({"nonfinite": self.nonfinite, "density": self.density, **step})
