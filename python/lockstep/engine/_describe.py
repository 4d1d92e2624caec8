"""describe: what a module's parameters are, for the receiver (raas_receiver/placement/description/FORMAT.md)."""

from typing import Any, Sequence

from lockstep.core.errors import BadDataError
from lockstep.engine._memory import Location, packed
from lockstep.engine._options import DescribeOptions
from lockstep.engine._parameters import Parameter, json_of, parameters_of

_FORMAT = 3


def describe(module: Any, **options: Any) -> "dict[str, Any]":
    """Describes ``module``, on any device, "meta" among them, as if its parameters lay one after another in one memory.

    Args:
        module: what one rank of the engine has.
        options: those of ``DescribeOptions``.

    Raises:
        BadDataError: a tensor cannot be described; the text names it.
    """
    given = DescribeOptions(**options)
    engine, parameters = parameters_of(module, given)
    offsets, total = packed(parameters)
    return description_of(engine, given, parameters, [Location(0, offset) for offset in offsets], [[total]])


def description_of(
    engine: str,
    options: DescribeOptions,
    parameters: "Sequence[Parameter]",
    locations: "Sequence[Location]",
    halves: "Sequence[Sequence[int]]",
) -> "dict[str, Any]":
    """The description of parameters that lie at ``locations``, by the rules of ``engine``; ``halves``: the bytes of each
    one's memories."""
    groups = {
        "tensor": options.tensor_parallel,
        "expert": options.expert_parallel,
        "expert_tensor": options.expert_tensor_parallel,
    }
    for name, (own, size) in {"rank": (options.rank, options.world), **groups}.items():
        if not 0 <= own < size:
            raise BadDataError(f"{name}: rank {own} of {size}")
    if not parameters:
        raise BadDataError("the module has no parameters")
    place: "dict[str, Any]" = {"engine": engine}
    place.update({name: {"size": size, "rank": own} for name, (own, size) in groups.items()})
    if options.family:
        place["family"] = options.family
    place["key_value_heads"] = options.key_value_heads
    place["fused_shared_experts"] = options.fused_shared_experts
    return {
        "format": _FORMAT,
        "rank": options.rank,
        "world": options.world,
        "place": place,
        "halves": halves,
        "parameters": [json_of(own, at.memory, at.offset) for own, at in zip(parameters, locations)],
    }
