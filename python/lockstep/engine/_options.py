"""How a module is described."""

from dataclasses import dataclass
from typing import Any, Iterable, Mapping, Sequence, Tuple, TypedDict

# For each parameter its slices, or its padding, as in raas_receiver/placement/description/FORMAT.md.
Slices = Mapping[str, "Sequence[Mapping[str, Any]]"]


@dataclass(frozen=True)
class DescribeOptions:
    """The keywords of ``describe``, which ``Follower`` takes too.

    Args:
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
        ignore: patterns of the model's tensors that this module does without, such as "mtp.*"; any other one that no
            parameter takes is refused by name. Of engines "huggingface" and "described".
        slices, padding: for each parameter its {"tensor", "from", "shape", "at"} and {"at", "shape"}.
    """

    engine: str = "huggingface"
    family: str = ""
    rank: int = 0
    world: int = 1
    tensor_parallel: "Tuple[int, int]" = (0, 1)
    expert_parallel: "Tuple[int, int]" = (0, 1)
    expert_tensor_parallel: "Tuple[int, int]" = (0, 1)
    key_value_heads: int = 0
    fused_shared_experts: bool = False
    aliases: bool = False
    leave_out: "Iterable[str]" = ()
    ignore: "str | Iterable[str]" = ()
    slices: "Slices | None" = None
    padding: "Slices | None" = None


class DescribeKeywords(TypedDict, total=False):
    """``DescribeOptions`` as keywords."""

    engine: str
    family: str
    rank: int
    world: int
    tensor_parallel: "Tuple[int, int]"
    expert_parallel: "Tuple[int, int]"
    expert_tensor_parallel: "Tuple[int, int]"
    key_value_heads: int
    fused_shared_experts: bool
    aliases: bool
    leave_out: "Iterable[str]"
    ignore: "str | Iterable[str]"
    slices: "Slices | None"
    padding: "Slices | None"
