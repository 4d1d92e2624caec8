"""Publication: what a publish gives back."""

import weakref
from typing import Any, Callable

from lockstep.core.answers import VersionChanges
from lockstep.core.errors import StateError
from lockstep.core.served import Receivers


class Publication:
    """A version that this rank has published. False where it was skipped, see ``skip_while_away``.

    Attributes:
        version: its number. label: what the trainer calls it; "": nothing. run: that it is of, 32 hex digits.
        bytes: that this rank copied or sent. seconds: from the call until this rank had committed.
        skipped: no agent was there, and no receiver gets this version; the next one has all weights.

    With several ranks a version is whole once the last one has committed it: ``wait`` says when the fleet has it.
    """

    def __init__(
        self,
        version: int,
        label: str,
        handle: Any = None,
        *,
        size: int = 0,
        seconds: float = 0.0,
        skipped: bool = False,
    ) -> None:
        self.version = version
        self.label = label
        self.run = handle.run if handle is not None else ""
        self.bytes = size
        self.seconds = seconds
        self.skipped = skipped
        # It keeps nothing open.
        self._handle: "Callable[[], Any]" = weakref.ref(handle) if handle is not None else lambda: None

    def wait(
        self,
        *,
        receivers: "Receivers | None" = None,
        engines: "int | None" = None,
        timeout: "float | None" = None,
    ) -> "Publication":
        """Waits until the fleet serves it, or a newer version of its run; arguments and errors as ``wait_served``: a
        DeadlineError's ``lacking`` are the receivers that lack it.
        StateError also where it was skipped, or this rank does not talk to the agent. Returns this."""
        self._open_handle("wait").wait_served(
            version=self.version, receivers=receivers, engines=engines, timeout=timeout
        )
        return self

    def stats(self, *, timeout: "float | None" = 60.0) -> VersionChanges:
        """What this version changed of the one before it, tensor by tensor, with NaN and Inf. It waits until all ranks have
        committed, and the agent has compared the two.
        DeadlineError: not within ``timeout`` seconds (None: no limit), as of a version that was aborted. NotFoundError: the
        agent has forgotten it. StateError as ``wait``."""
        changes: VersionChanges = self._open_handle("stats").changes(self.version, timeout)
        return changes

    def _open_handle(self, call: str) -> Any:
        handle = self._handle()
        if not self.skipped and handle is not None:
            return handle
        why = (
            "was skipped"
            if self.skipped
            else "has no open publisher on this rank: keep it in a variable, and wait where the agent is"
        )
        raise StateError(f"{call}: version {self.version} {why}")

    def __bool__(self) -> bool:
        return not self.skipped

    def __repr__(self) -> str:
        label = f", label {self.label!r}" if self.label else ""
        return f"<Publication of version {self.version}{label}{', skipped' if self.skipped else ''}>"
