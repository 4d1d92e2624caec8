"""What the ranks of a trainer send each other when a publisher is made, so that they succeed or fail together."""

from typing import Any, Callable, NamedTuple, Sequence, TypeVar

from lockstep.core.errors import AbortedError

_Made = TypeVar("_Made")


class Ranks(NamedTuple):
    """The descriptions of all ranks of a group, as JSON, in rank order, and this one's place among them."""

    descriptions: "list[bytes]"
    rank: int


ALONE = object()  # in place of a group: just this process


def resolved(group: Any) -> Any:
    """``group``, or ALONE where torch.distributed is not initialised: what is so now stays so."""
    return ALONE if _distributed_of(group) is None else group


def gather_descriptions(describe: "Callable[[], str]", group: Any) -> Ranks:
    """Every rank's description; just this one without torch.distributed. AbortedError: another rank could not make one."""
    return Ranks([description.encode() for description in gather(describe, group)], rank_of(group))


def gather(make: "Callable[[], _Made]", group: Any) -> "list[_Made]":
    """What each rank of the group makes, in rank order. Raises on every rank if it fails on one: what it raised here, else
    AbortedError."""
    made, failure = None, None
    try:
        made = make()
    except Exception as error:  # sent to the other ranks, which wait for this one, and raised below
        failure = error
    try:
        answers = all_gather((reason_of(failure), made), group)
    except Exception as error:
        if failure is not None:  # of which the group's is a consequence
            raise failure from error
        raise
    require_agreement([(reason, ()) for reason, _ in answers], failure)
    return [own for _, own in answers]


def rank_of(group: Any) -> int:
    """This process's rank in the group."""
    distributed = _distributed_of(group)
    return distributed.get_rank(group) if distributed else 0


def all_gather(what: Any, group: Any) -> "list[Any]":
    """``what`` of each rank of the group, in rank order."""
    distributed = _distributed_of(group)
    if distributed is None:
        return [what]
    gathered: "list[Any]" = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(gathered, what, group=group)
    return gathered


def made_by(rank: int, make: "Callable[[], _Made]", group: Any) -> "_Made":
    """What that rank of the group makes. Raises on every rank as ``gather`` does."""
    sent: "list[Any]" = [None]
    here = rank_of(group) == rank

    def fill() -> None:
        if here:
            sent[0] = make()

    gather(fill, group)
    distributed = _distributed_of(group)
    if distributed is not None:
        source = rank if group is None else distributed.get_global_rank(group, rank)
        distributed.broadcast_object_list(sent, src=source, group=group)
    made: "_Made" = sent[0]
    return made


def reason_of(failure: "BaseException | None") -> str:
    """What the other ranks are sent; "" for none."""
    return f"{type(failure).__name__}: {failure}" if failure is not None else ""


def require_agreement(answers: "Sequence[tuple[str, Any]]", failure: "Exception | None") -> None:
    """Raises on every rank, with the reason, when one has failed or differs from rank 0.

    ``answers``: of each rank, why it failed ("" when it did not), and what must be equal on all.
    """
    if failure is not None:
        raise failure
    for rank, (reason, what) in enumerate(answers):
        if reason:
            raise AbortedError(f"rank {rank} could not open the model: {reason}")
        if what != answers[0][1]:
            raise AbortedError(
                f"rank {rank} has plan and bucket_bytes {what}, rank 0 {answers[0][1]}: use one version of lockstep, "
                "and one bucket_bytes, on every rank"
            )


def _distributed_of(group: Any) -> Any:
    """torch.distributed, when it is initialised; None: the group is just this process."""
    if group is ALONE:
        return None
    try:
        import torch.distributed as distributed
    except ImportError:
        return None
    return distributed if distributed.is_available() and distributed.is_initialized() else None
