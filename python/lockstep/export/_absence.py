"""What becomes of versions while the agent is away."""

import errno
import os
import socket
import warnings
from typing import Callable

from lockstep.core.errors import UnavailableError
from lockstep.core.publication import Publication


class Absence:
    """Has versions skipped while no agent listens on ``path``; unless ``skips`` they fail.

    A version that the agent is there for has all weights, so receivers catch up with the first one.
    """

    def __init__(self, path: "str | os.PathLike[str]", skips: bool) -> None:
        self._path = os.fspath(path)
        self.skips = skips
        self._noticed = False

    def publish(self, publish: "Callable[[], Publication]", version: int, label: bytes) -> Publication:
        """What ``publish`` gives, or what was skipped. UnavailableError also when it is not the agent that is away."""
        skipped = Publication(version, label.decode(), skipped=True)
        if self._noticed and not self._listens():
            return skipped
        try:
            published = publish()
        except UnavailableError as error:
            if not self.skips or self._listens():
                raise
            if not self._noticed:
                warnings.warn(f"versions are skipped until the agent is back: {error}", RuntimeWarning, stacklevel=3)
            self._noticed = True
            return skipped
        self._noticed = False
        return published

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)  # one that is too busy to accept is there
            return probe.connect_ex(self._path) not in (errno.ENOENT, errno.ECONNREFUSED)
