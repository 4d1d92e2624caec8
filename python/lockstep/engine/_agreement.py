"""Agreement: what the receivers of an engine on several hosts have come to, told from rank to rank. Rank uses it.

Each host's receiver writes the ranks of its own host. No receiver knows another one. Before it goes a step further, it asks one of its
ranks whether the others have come as far (raas_receiver/engine/ranks/FORMAT.md, "Several hosts").

The ranks keep one cell in a store that all of them reach, and change it by compare-and-set:

    held     of each host: the version that its receiver holds and wants to write
    target   the version that is being written; paused, written: the hosts that have come as far with it
    whole    the version that all ranks hold; none from the moment when all hosts are paused until all have written

A rank reads a version only while ``whole`` is that version. So no rank reads the one before once another rank may be written, and none
reads the new one before all have it, whatever receivers do, and whichever of them dies.
"""

import datetime
import enum
import json
import os
import secrets
from pathlib import Path
from typing import Any, Callable, NamedTuple, TypeVar

from lockstep.core.agreement import gather
from lockstep.core.errors import BadDataError, UnavailableError
from lockstep.engine._served import Served

_STORE_SECONDS = 10
_CELL = "agreement"
_Answer = TypeVar("_Answer")


class Step(enum.IntEnum):
    """How far a receiver has come with a version."""

    HELD = 0
    PAUSED = 1
    WRITTEN = 2


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

    Every method raises UnavailableError where the store does not answer.
    """

    def __init__(self, store: Any, host: int, hosts: int) -> None:
        self._store = store
        self._host = str(host)
        self._all = {str(number) for number in range(hosts)}

    def ask(self, step: Step, version: Served) -> Answer:
        """Notes that this host's receiver has come so far, and tells whether all have."""
        name = _name(version)

        def held(cell: "dict[str, Any]") -> Answer:
            cell["held"][self._host] = name
            if self._all_hold(cell, name):
                return Answer.YES
            others = [_parsed(other) for other in cell["held"].values()]
            passed = any(other.run != version.run or other.version > version.version for other in others)
            return Answer.NO if passed else Answer.NOT_YET

        def paused(cell: "dict[str, Any]") -> Answer:
            if not self._all_hold(cell, name):
                return Answer.NO
            if cell["target"] != name:
                cell.update(target=name, paused=[], written=[])
            if not self._enter(cell["paused"]):
                return Answer.NOT_YET
            cell["whole"] = ""
            return Answer.YES

        def written(cell: "dict[str, Any]") -> Answer:
            if cell["target"] != name or not self._all_in(cell["paused"]):
                return Answer.NO
            if not self._enter(cell["written"]):
                return Answer.NOT_YET
            cell.update(whole=name, target="", paused=[], written=[])
            return Answer.YES

        take = (held, paused, written)[step]
        # Ranks of this host that lack what all others read are brought to it without them.
        return self._change(lambda cell: Answer.YES if cell["whole"] == name else take(cell))

    def leave(self) -> None:
        """This host's receiver is gone, and with it what it held."""

        def left(cell: "dict[str, Any]") -> None:
            cell["held"].pop(self._host, None)
            self._withdraw(cell)

        self._change(left)

    def may_read(self, version: Served) -> bool:
        """Whether a rank may begin to read ``version``: all ranks of all hosts hold it. This host is paused for no other one from
        here on."""

        def whole(cell: "dict[str, Any]") -> bool:
            self._withdraw(cell)
            return bool(cell["whole"] == _name(version))

        return self._change(whole)

    def _all_hold(self, cell: "dict[str, Any]", name: str) -> bool:
        return all(cell["held"].get(host) == name for host in self._all)

    def _all_in(self, hosts: "list[str]") -> bool:
        return self._all == set(hosts)

    def _enter(self, hosts: "list[str]") -> bool:
        """Whether all are in it, this one too."""
        if self._host not in hosts:
            hosts.append(self._host)
        return self._all_in(hosts)

    def _withdraw(self, cell: "dict[str, Any]") -> None:
        if self._host in cell["paused"]:
            cell.update(target="", paused=[], written=[])

    def _change(self, edit: "Callable[[dict[str, Any]], _Answer]") -> _Answer:
        begin = json.dumps({"held": {}, "target": "", "paused": [], "written": [], "whole": ""})
        try:
            found = self._store.compare_set(_CELL, "", begin).decode()
            while True:
                cell = json.loads(found)
                answer = edit(cell)
                changed = json.dumps(cell)
                found = self._store.compare_set(_CELL, found, changed).decode()
                if found == changed:
                    return answer
        except (RuntimeError, ValueError) as error:
            raise UnavailableError(f"the store of the engine's process group does not answer: {error}") from error


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
    """What ranks with the same receiver have in common, and no others."""
    path = Path(socket).absolute()
    try:
        directory = os.stat(path.parent)
        place = f"{directory.st_dev} {directory.st_ino} {path.name}"
    except OSError:  # the receiver makes it later
        place = str(path)
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {place}"


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


def _parsed(name: str) -> Served:
    run, number = name.split()
    return Served(run, int(number))
