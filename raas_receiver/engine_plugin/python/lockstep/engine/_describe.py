"""describe: what a module's parameters are, for a receiver to write them (raas_receiver/placement/description/FORMAT.md)."""

from typing import Any, Iterable, Sequence, Tuple

from lockstep._errors import BadDataError
from lockstep.engine._memory import packed
from lockstep.engine._parameters import Parameter, Slices, json_of, parameters_of

FORMAT = 1


def describe(
    module: Any,
    *,
    engine: str = "huggingface",
    family: str = "",
    rank: int = 0,
    world: int = 1,
    tensor_parallel: "Tuple[int, int]" = (0, 1),
    expert_parallel: "Tuple[int, int]" = (0, 1),
    expert_tensor_parallel: "Tuple[int, int]" = (0, 1),
    key_value_heads: int = 0,
    fused_shared_experts: bool = False,
    aliases: bool = False,
    leave_out: "Iterable[str]" = (),
    slices: "Slices | None" = None,
    padding: "Slices | None" = None,
) -> "dict[str, Any]":
    """Describes ``module``, on any device, "meta" among them, as if its parameters lay one after another in one memory.

    Args:
        module: what one rank of the engine has.
        engine: "sglang" or "vllm": ``family``'s rules say what the parameters are made of; "huggingface": they are a
            transformers model's; "described": ``slices`` and ``padding`` say it.
        family: config.json's model_type.
        rank, world: of the ranks that take versions together.
        tensor_parallel, expert_parallel, expert_tensor_parallel: (rank, size) of the groups that share attention and
            dense layers, whole experts, and what is within an expert.
        key_value_heads: config.json's num_key_value_heads; needed where there are more ranks than those.
        fused_shared_experts: shared experts lie behind the routed ones in one stack.
        aliases: tied parameters are listed under each of their names.
        leave_out: last parts of names of parameters that the engine computes from others.
        slices, padding: for each parameter its {"tensor", "from", "shape", "at"} and {"at", "shape"}.

    Raises:
        BadDataError: a tensor cannot be described; the text names it.
    """
    place = {
        "family": family,
        "tensor": tensor_parallel,
        "expert": expert_parallel,
        "expert_tensor": expert_tensor_parallel,
        "key_value_heads": key_value_heads,
        "fused_shared_experts": fused_shared_experts,
    }
    engine, parameters = parameters_of(
        module, engine, aliases=aliases, leave_out=leave_out, slices=slices, padding=padding
    )
    offsets, total = packed(parameters)
    halves = [[{"kind": "host", "bytes": total}]]
    return description_of(engine, place, rank, world, parameters, [(0, offset) for offset in offsets], halves)


def description_of(
    engine: str,
    place: "dict[str, Any]",
    rank: int,
    world: int,
    parameters: "Sequence[Parameter]",
    places: "Sequence[Tuple[int, int]]",
    halves: "list[list[dict[str, Any]]]",
) -> "dict[str, Any]":
    """The description of parameters that lie at ``places``: (memory, byte offset) for each."""
    for name, (own, size) in {"rank": (rank, world), **{key: place[key] for key in _GROUPS}}.items():
        if not 0 <= own < size:
            raise BadDataError(f"{name}: rank {own} of {size}")
    if not parameters:
        raise BadDataError("the module has no parameters")
    groups = {key: {"size": place[key][1], "rank": place[key][0]} for key in _GROUPS}
    described = {"engine": engine, **groups, **({"family": place["family"]} if place["family"] else {})}
    described["key_value_heads"] = place["key_value_heads"]
    described["fused_shared_experts"] = place["fused_shared_experts"]
    return {
        "format": FORMAT,
        "rank": rank,
        "world": world,
        "place": described,
        "halves": halves,
        "parameters": [json_of(parameter, *at) for parameter, at in zip(parameters, places)],
    }


_GROUPS = ("tensor", "expert", "expert_tensor")
