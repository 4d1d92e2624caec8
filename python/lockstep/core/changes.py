"""What a version changed of the one before it: the agent counts it as it compares the two (``lockstep_wait_changes``)."""

import os

from lockstep.core import abi, arguments
from lockstep.core.answers import VersionChanges
from lockstep.core.interruption import Interruption
from lockstep.core.served import asked


def wait_changes(path: str, model: str, run: str, version: int, timeout: "float | None") -> VersionChanges:
    """As ``Publication.stats``."""
    interruption = Interruption()
    query = abi.CChangesQuery(
        abi_version=abi.ABI_VERSION,
        socket_path=os.fsencode(path),
        model=model.encode(),
        run=run.encode(),
        version=version,
        timeout_ms=arguments.wait_milliseconds(timeout),
        interrupted=interruption.callback,
    )
    code, answer = asked(abi.load().lockstep_wait_changes, query, VersionChanges, interruption)
    abi.raise_failure(code)
    return answer
