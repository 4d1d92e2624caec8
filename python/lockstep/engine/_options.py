"""How a module is described."""

from dataclasses import dataclass
from typing import Any, Iterable, Mapping, Sequence, TypedDict

# For each parameter its slices, or its padding, as in raas_receiver/engine/placement/description/FORMAT.md.
Slices = Mapping[str, "Sequence[Mapping[str, Any]]"]


@dataclass(frozen=True)
class DescribeOptions:
    """The keywords of ``describe``, which ``Follower`` takes too.

    Args:
        rank, world: of the ranks that take versions together.
        ignore: patterns of the model's tensors that this module does without, such as "mtp.*"; any other one that no
            parameter takes is refused by name.
        slices, padding: for each parameter its {"tensor", "from", "shape", "at"} and {"at", "shape"}. Without them the
            module is a transformers model, or any whose parameters and buffers are tensors of the model.
    """

    rank: int = 0
    world: int = 1
    ignore: "str | Iterable[str]" = ()
    slices: "Slices | None" = None
    padding: "Slices | None" = None


class DescribeKeywords(TypedDict, total=False):
    """``DescribeOptions`` as keywords."""

    rank: int
    world: int
    ignore: "str | Iterable[str]"
    slices: "Slices | None"
    padding: "Slices | None"
