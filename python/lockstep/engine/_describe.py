"""describe, and Contents for Follower: what a module's parameters are, for the receiver (raas_receiver/engine/placement/description/FORMAT.md)."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, Sequence, Tuple

from lockstep.core import arguments
from lockstep.core.errors import BadDataError
from lockstep.core.keywords import takes
from lockstep.engine._memory import Location, Memory
from lockstep.engine._options import DescribeKeywords, DescribeOptions
from lockstep.engine._parameters import Parameter, json_of, parameters_of
from lockstep.engine._recorded import Recorded

if TYPE_CHECKING:
    from typing_extensions import Unpack


_FORMAT = 4
_ALIGN = 256
_KEPT = 16  # addresses keep their remainder by this, which covers every element's size
_PAGE_BYTES = 4096


@takes(DescribeKeywords)
def describe(module: Any, **options: "Unpack[DescribeKeywords]") -> "dict[str, Any]":
    """Describes ``module``, on any device, "meta" among them, as if its parameters lay one after another in one memory.

    Args:
        module: what one rank of the engine has.
        options: those of ``DescribeOptions``.

    Raises:
        BadDataError: a tensor cannot be described; the text names it.
    """
    given = DescribeOptions(**options)
    parameters = parameters_of(module, given)
    offsets, total = _packed(parameters)
    return description_of(given, parameters, [Location(0, offset) for offset in offsets], [total])


class Contents:
    """What a follower describes, as often as it attaches.

    Args:
        module: what the rank has of the model.
        options: say what its parameters are made of; with ``recorded``, its rank alone.
        recorded: the engine's own loader says it.
        check: called before the module is described.
        compare_only: without what the rank computes.
    """

    def __init__(
        self,
        module: Any,
        options: DescribeOptions,
        recorded: "Recorded | None",
        check: "Callable[[], Any] | None",
        compare_only: bool,
    ) -> None:
        self.recorded = recorded
        self.compute: "Callable[[], None]" = lambda: None  # what parameters have that is no copy, after each write
        self._module, self._options, self._check, self._compare_only = module, options, check, compare_only

    def describe(self) -> "Tuple[Memory, dict[str, Any]]":
        """Where the parameters lie now, and their description. BadDataError names what cannot be described."""
        if self._check is not None:
            self._check()
        options, layout, computed = self._options, "", []
        if self.recorded is None:
            parameters = parameters_of(self._module, options)
        else:
            placement = self.recorded.place(self._compare_only)
            parameters, layout, self.compute = placement.parameters, placement.layout, placement.compute
            computed = [own.box for own in placement.computed]
            options = replace(options, ignore="*")  # what the engine's own loader passes over
        memory = Memory(self._module, parameters, computed)
        sizes = [place.size for place in memory.places]
        return memory, description_of(options, parameters, memory.locations, sizes, layout)


def description_of(
    options: DescribeOptions,
    parameters: "Sequence[Parameter]",
    locations: "Sequence[Location]",
    memories: "Sequence[int]",
    layout: str = "",
) -> "dict[str, Any]":
    """The description of parameters that lie at ``locations``; ``memories``: the bytes of each. ``layout``: the digest of
    the model's layout, where the description is for no other."""
    if not 0 <= options.rank < options.world:
        raise BadDataError(f"rank {options.rank} of {options.world}: ranks are numbered from 0")
    if not parameters:
        raise BadDataError("the module has no parameters")
    ignored = arguments.patterns("ignore", options.ignore)
    return {
        "format": _FORMAT,
        "rank": options.rank,
        "world": options.world,
        **({"layout": layout} if layout else {}),
        **({"ignore": ignored} if ignored else {}),
        "memories": list(memories),
        "parameters": [json_of(own, at.memory, at.offset) for own, at in zip(parameters, locations)],
    }


def _packed(parameters: "Sequence[Parameter]") -> "Tuple[list[int], int]":
    """Byte offsets at which the parameters lie one after another in one memory, and its size.

    Parameters that overlap (tied ones, views of one another) overlap there in the same way.
    """
    offsets = [0] * len(parameters)
    end = 0
    block_begin, block_end, block_offset = 0, -1, 0  # of what overlaps
    for index in sorted(range(len(parameters)), key=lambda k: (parameters[k].address, k)):
        parameter = parameters[index]
        begin = parameter.address - parameter.address % _KEPT
        if parameter.address == 0 or parameter.address >= block_end:
            block_begin, block_end = begin, parameter.address
            block_offset = -(-end // _ALIGN) * _ALIGN
        offsets[index] = block_offset + parameter.address - block_begin
        block_end = max(block_end, parameter.address + parameter.span_bytes)
        end = max(end, offsets[index] + parameter.span_bytes)
    return offsets, max(-(-end // _PAGE_BYTES), 1) * _PAGE_BYTES
