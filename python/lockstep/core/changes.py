"""What a version changed of the one before it: the agent counts it as it compares the two (``lockstep_wait_changes``)."""

import ctypes
import os

from lockstep.core import abi, arguments
from lockstep.core.answers import VersionChanges, decoded, parsed
from lockstep.core.interruption import Interruption


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
    library = abi.load()
    text = ctypes.c_void_p()
    code = library.lockstep_wait_changes(ctypes.byref(query), ctypes.byref(text))
    try:
        answer = decoded(VersionChanges, parsed(ctypes.string_at(text))) if text else VersionChanges()
    finally:
        library.lockstep_free(text)
    interruption.raise_pending()
    abi.raise_failure(code)
    return answer
