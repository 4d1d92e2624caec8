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
    """A receiver, as an agent knows it. ``presence``: "connected", "gone", or "unknown" of one that is only asked for."""

    receiver: str = ""
    held: VersionRef = VersionRef()
    served_version: int = 0
    presence: str = ""
    seconds_ago: int = 0
    last_outcome: str = ""
    last_error: str = ""
    engines: Tuple[EngineServed, ...] = ()


def peers_of(text: str) -> "Tuple[Peer, ...]":
    """Of the lines in which an agent says which receivers lack a version (trainer_agent/run/FORMAT.md). ValueError: they
    are something else."""
    peers: "list[Peer]" = []
    for line in filter(None, text.split("\n")):
        fields = line.split("\t")
        if fields[0]:
            name, presence, held, served, error = fields
            peers.append(Peer(name, _held(held), _held(served).version, presence, last_error=error))
        else:
            _, name, served, error = fields
            engine = EngineServed(name, _held(served), error)
            peers[-1] = dataclasses.replace(peers[-1], engines=(*peers[-1].engines, engine))
    return tuple(peers)


def _held(text: str) -> VersionRef:
    run, version = text.split(" ")
    return VersionRef(run if int(version) else "", int(version))
