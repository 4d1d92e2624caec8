"""Processes that are forked off one with connections, as a data loader's workers are: they have no part in them."""

import os
import weakref
from typing import Protocol

FORKED = "belongs to the process from which this one was forked; open another in this process"


class Owner(Protocol):
    def _close_after_fork(self) -> None:
        """Gives its connections up without a word to the peers, which are the parent's. Called in a process that was
        just forked, which has this thread alone; another may have held a lock."""


_owners: "weakref.WeakSet[Owner]" = weakref.WeakSet()


def close_after_fork(owner: Owner) -> None:
    """Has ``owner``, as long as it lives, closed in every process that is forked off this one."""
    _owners.add(owner)


def _close_all() -> None:
    for owner in list(_owners):
        owner._close_after_fork()


os.register_at_fork(after_in_child=_close_all)
