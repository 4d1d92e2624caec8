"""What the plugins follow: $LOCKSTEP_ENGINE_SOCKET, the receiver's ``--engine-socket``; $LOCKSTEP_MODEL, its name for the
model; $LOCKSTEP_ENGINE_NAME, the engine's among several; $LOCKSTEP_ENGINE_URL, that of its server, where the receiver
is not configured with it; $LOCKSTEP_ENGINE_COMPARE, 1 where engines load the receiver's directory
and their memory is only compared."""

import os
from typing import NamedTuple

from lockstep.core.errors import BadDataError


class Followed(NamedTuple):
    socket: str
    model: str
    engine_name: str
    compare_only: bool
    server: str


def follows() -> bool:
    """Whether the environment says that engines are to follow."""
    return "LOCKSTEP_ENGINE_SOCKET" in os.environ


def followed() -> Followed:
    """BadDataError names the variable that is missing, or cannot be."""
    for variable in ("LOCKSTEP_ENGINE_SOCKET", "LOCKSTEP_MODEL"):
        if not os.environ.get(variable):
            raise BadDataError(f"${variable} must be set for lockstep to follow")
    compare = os.environ.get("LOCKSTEP_ENGINE_COMPARE", "0")
    if compare not in ("0", "1"):
        raise BadDataError(f"$LOCKSTEP_ENGINE_COMPARE is {compare!r}; it must be 0 or 1")
    server = os.environ.get("LOCKSTEP_ENGINE_URL", "")
    return Followed(
        socket=os.environ["LOCKSTEP_ENGINE_SOCKET"],
        model=os.environ["LOCKSTEP_MODEL"],
        engine_name=os.environ.get(
            "LOCKSTEP_ENGINE_NAME", f"port-{server.rpartition(':')[2]}" if server else "default"
        ),
        compare_only=compare == "1",
        server=server,
    )
