"""What is known of a receiver: what an agent says of it, and which of them lack a version."""

import dataclasses
from typing import Tuple


@dataclasses.dataclass(frozen=True)
class VersionRef:
    """A version of a run, 32 hex digits; version 0: none."""

    run: str = ""
    version: int = 0


@dataclasses.dataclass(frozen=True)
class EngineServed:
    """What an engine serves, as its receiver told the agent."""

    name: str = ""
    served: VersionRef = VersionRef()
    last_error: str = ""


@dataclasses.dataclass(frozen=True)
class Peer:
    """A receiver, as an agent knows it. ``presence``: "connected"; "gone"; "unspecified" of one that has pulled and never
    followed versions; "unknown" of one that is only asked for."""

    receiver: str = ""
    held: VersionRef = VersionRef()
    served_version: int = 0
    presence: str = ""
    seconds_ago: int = 0
    last_outcome: str = ""
    last_error: str = ""
    engines: Tuple[EngineServed, ...] = ()
