"""Agreement: what the receivers of an engine on several hosts have come to, told from rank to rank. Rank uses it.

Each host's receiver writes the ranks of its own host. No receiver knows another one. Before it goes a step further, it asks one of its
ranks whether the others have come as far (raas_receiver/engine/ranks/FORMAT.md, "Several hosts").

The ranks keep one cell in a store that all of them reach, and change it by compare-and-set:

    held     of each host: the version that its receiver holds and wants to write, and when it said so, among all that did
    next     the version that hosts are about to write, and the hosts that are paused for it
    now      the version that ranks are written, or were; the hosts whose ranks hold it, and those whose ranks serve it

``next`` becomes ``now`` when all hosts are paused for it. A rank begins to read a version only while that is ``now`` and all hosts hold
it. So no rank reads the version before once another rank may be written, and none reads the new one before all have it, whatever
receivers do, and whichever of them dies.
"""

import datetime
import enum
import json
import os
import queue
import secrets
import threading
from pathlib import Path
from typing import Any, Callable, NamedTuple, TypeVar

from lockstep.core.agreement import gather
from lockstep.core.errors import BadDataError, UnavailableError
from lockstep.engine._served import Served

_STORE_SECONDS = 10
_CELL = "agreement"
_EMPTY = json.dumps({"held": {}, "next": ["", []], "now": ["", [], []]})
_Answer = TypeVar("_Answer")


class Step(enum.IntEnum):
    """How far a receiver has come with a version."""

    HELD = 0
    PAUSED = 1
    WRITTEN = 2
    SERVED = 3


class Answer(enum.IntEnum):
    """Whether the others have come as far."""

    NOT_YET = 0
    YES = 1
    NO = 2  # another host has a newer version, or has gone back


class Agreement:
    """One host's part of it. Threads: any, one at a time.

    Args:
        store: a torch.distributed.Store with compare_set.
        host, hosts: this host's number, and how many there are.

    Every method raises UnavailableError where the store does not answer within ten seconds.
    """

    def __init__(self, store: Any, host: int, hosts: int) -> None:
        self._store = store
        self._host = str(host)
        self._all = {str(number) for number in range(hosts)}
        self._seen = ""  # the cell, as it was last; "": not yet
        self._store_seconds: float = _STORE_SECONDS
        self._late: "queue.SimpleQueue[Any] | None" = None  # of a call that has not come back

    def ask(self, step: Step, version: Served) -> Answer:
        """Notes that this host's receiver has come so far, and tells whether all have."""
        name = _name(version)
        return self._change(lambda cell: _STEPS[step](self, cell, name))

    def leave(self) -> None:
        """This host's receiver is gone, and with it what it held."""

        def left(cell: "dict[str, Any]") -> None:
            cell["held"].pop(self._host, None)
            _remove(self._host, cell["next"][1])

        self._change(left)

    def lose(self) -> None:
        """A rank of this host does not hold what it was written: nobody begins to read before it is written again."""
        self._change(self._lost)

    def may_read(self, version: Served) -> bool:
        """Whether a rank may begin to read ``version``: all ranks of all hosts hold it. This host is paused for no other one from
        here on."""

        def whole(cell: "dict[str, Any]") -> bool:
            _remove(self._host, cell["next"][1])
            return cell["now"][0] == _name(version) and self._are_in(cell["now"][1])

        return self._change(whole)

    def _held(self, cell: "dict[str, Any]", name: str) -> Answer:
        held = cell["held"]
        if cell["now"][0] == name:  # what this host's ranks lack of it, they get without the others
            held.pop(self._host, None)
            return Answer.YES
        before = held.get(self._host)
        if before is None or before[0] != name:
            held[self._host] = [name, 1 + max((said for _, said in held.values()), default=0)]
        if self._all_hold(cell, name):
            return Answer.YES
        if any(_passes(other, held[self._host]) for other in held.values()):
            del held[self._host]  # nobody is to pause for it
            return Answer.NO
        return Answer.NOT_YET

    def _paused(self, cell: "dict[str, Any]", name: str) -> Answer:
        if cell["now"][0] == name:
            self._lost(cell)  # it may be written
            return Answer.YES
        if not self._all_hold(cell, name):
            return Answer.NO
        if cell["next"][0] != name:
            cell["next"] = [name, []]
        if not self._enter(cell["next"][1]):
            return Answer.NOT_YET
        cell["now"], cell["next"] = [name, [], []], ["", []]
        return Answer.YES

    def _written(self, cell: "dict[str, Any]", name: str) -> Answer:
        if cell["now"][0] != name:
            return Answer.NO
        return Answer.YES if self._enter(cell["now"][1]) else Answer.NOT_YET

    def _served(self, cell: "dict[str, Any]", name: str) -> Answer:
        if cell["now"][0] != name or self._host not in cell["now"][1]:
            return Answer.NO
        return Answer.YES if self._enter(cell["now"][2]) else Answer.NOT_YET

    def _lost(self, cell: "dict[str, Any]") -> None:
        for hosts in (cell["now"][1], cell["now"][2], cell["next"][1]):
            _remove(self._host, hosts)

    def _all_hold(self, cell: "dict[str, Any]", name: str) -> bool:
        return all(cell["held"].get(host, [""])[0] == name for host in self._all)

    def _are_in(self, hosts: "list[str]") -> bool:
        return self._all == set(hosts)

    def _enter(self, hosts: "list[str]") -> bool:
        """Whether all are in it, this one too."""
        if self._host not in hosts:
            hosts.append(self._host)
        return self._are_in(hosts)

    def _change(self, edit: "Callable[[dict[str, Any]], _Answer]") -> _Answer:
        if not self._seen:
            self._seen = self._compare_set("", _EMPTY)
        while True:
            cell = json.loads(self._seen)
            answer = edit(cell)
            changed = json.dumps(cell)
            self._seen = self._compare_set(self._seen, changed)
            if self._seen == changed:
                return answer

    def _compare_set(self, expected: str, desired: str) -> str:
        """The cell afterwards. The store's own call may take for ever, and then the store takes no other."""
        if self._late is not None and self._late.empty():
            raise UnavailableError("the store of the engine's process group does not answer")
        done: "queue.SimpleQueue[Any]" = queue.SimpleQueue()

        def call() -> None:
            try:
                done.put(self._store.compare_set(_CELL, expected, desired).decode())
            except Exception as error:
                done.put(error)

        threading.Thread(target=call, name="lockstep-agreement", daemon=True).start()
        try:
            answer = done.get(timeout=self._store_seconds)
        except queue.Empty:
            self._late = done
            answer = TimeoutError(f"no answer within {self._store_seconds:g} s")
        if isinstance(answer, Exception):
            raise UnavailableError(f"the store of the engine's process group does not answer: {answer}") from answer
        return str(answer)


_STEPS: "tuple[Callable[[Agreement, dict[str, Any], str], Answer], ...]" = (
    Agreement._held,
    Agreement._paused,
    Agreement._written,
    Agreement._served,
)


class Placed(NamedTuple):
    """Where the ranks of a process group are."""

    agreement: "Agreement | None"  # None: all are on this host
    here: "list[int]"  # the ranks on this host, rising
    incarnation: str  # of rank 0


def placed(group: Any, socket: str, incarnation: str, rank: int, world: int) -> Placed:
    """All ranks of ``group`` call it together. Ranks with the same receiver's ``socket`` are on one host.

    Raises:
        BadDataError: ``rank`` and ``world`` are not the group's, or torch.distributed has no store that other hosts reach.
        AbortedError: it failed on another rank.
    """
    import torch.distributed as distributed

    def describe() -> "tuple[str, str, str]":
        own = (distributed.get_rank(group), distributed.get_world_size(group))
        if own != (rank, world):
            raise BadDataError(
                f"rank {rank} of {world}, and the process group has this process as {own[0]} of {own[1]}"
            )
        return _receiver(socket), incarnation, secrets.token_hex(8)

    ranks = gather(describe, group)
    receivers = list(dict.fromkeys(receiver for receiver, _, _ in ranks))
    own = ranks[rank][0]
    here = [number for number, (receiver, _, _) in enumerate(ranks) if receiver == own]
    _, first, name = ranks[0]
    if len(receivers) == 1:
        return Placed(None, here, first)
    agreements: "list[Agreement]" = []
    gather(lambda: agreements.append(Agreement(_connected(name), receivers.index(own), len(receivers))), group)
    return Placed(agreements[0], here, first)


def _receiver(socket: str) -> str:
    """What ranks with the same receiver have in common, and no others: a receiver may come later, and makes its directory then."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/mnt')} {os.path.realpath(socket)}"


def _connected(name: str) -> Any:
    """A connection of its own to the store of torch.distributed: others may wait on theirs for long."""
    import torch.distributed as distributed

    store = distributed.distributed_c10d._get_default_store()
    while isinstance(store, distributed.PrefixStore):
        store = store.underlying_store
    if not isinstance(store, distributed.TCPStore):
        raise BadDataError(
            f"torch.distributed has a {type(store).__name__}, which ranks on other hosts cannot change; use TCP"
        )
    wait = datetime.timedelta(seconds=_STORE_SECONDS)
    try:
        own = distributed.TCPStore(store.host, store.port, is_master=False, timeout=wait, wait_for_workers=False)
    except RuntimeError as error:
        raise UnavailableError(
            f"the store of torch.distributed at {store.host}:{store.port} does not answer: {error}"
        ) from error
    return distributed.PrefixStore(f"lockstep/{name}", own)


def _name(version: Served) -> str:
    return f"{version.run} {version.version}"


def _passes(other: "list[Any]", own: "list[Any]") -> bool:
    """Whether what another host holds is newer. Runs have no order: the one that came last is."""
    (run, version), (own_run, own_version) = other[0].split(), own[0].split()
    return int(version) > int(own_version) if run == own_run else bool(other[1] > own[1])


def _remove(host: str, hosts: "list[str]") -> None:
    if host in hosts:
        hosts.remove(host)
