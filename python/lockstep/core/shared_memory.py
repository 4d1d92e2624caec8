"""Host memory that another process may map, and cannot cut off."""

import fcntl
import mmap
import os
from typing import Tuple

from lockstep.core.errors import ResourceExhaustedError


def sealed_memory(name: str, size: int, what: str) -> "Tuple[int, mmap.mmap]":
    """A memfd with a fixed size of ``size`` bytes, and its mapping. The caller closes the descriptor.
    ResourceExhaustedError: there is no memory for ``what``."""
    fd = -1
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.posix_fallocate(fd, 0, size)  # no memory is an error here, not a SIGBUS later
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return fd, mmap.mmap(fd, size)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise ResourceExhaustedError(f"{size} bytes of shared memory for {what}: {error}") from error
