"""What becomes of versions while the agent is away."""

import errno
import os
import socket
import warnings
from typing import Callable

from lockstep.core.errors import UnavailableError


class Absence:
    """Has versions skipped while no agent listens on ``path``; unless ``skips`` they fail.

    A version that the agent is there for has all weights, so receivers catch up with the first one.
    """

    def __init__(self, path: "str | os.PathLike[str]", skips: bool) -> None:
        self._path = os.fspath(path)
        self.skips = skips
        self._noticed = False

    def publish(self, publish: "Callable[[], None]") -> bool:
        """Whether it was published. UnavailableError also when it is not the agent that is away."""
        if self._noticed and not self._listens():
            return False
        try:
            publish()
        except UnavailableError as error:
            if not self.skips or self._listens():
                raise
            if not self._noticed:
                warnings.warn(f"versions are skipped until the agent is back: {error}", RuntimeWarning, stacklevel=3)
            self._noticed = True
            return False
        self._noticed = False
        return True

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)  # one that is too busy to accept is there
            return probe.connect_ex(self._path) not in (errno.ENOENT, errno.ECONNREFUSED)
