"""AstraFlow's rollout service loads what the receiver on its host has proved: in astraflow/raas/server/__main__.py,
``from lockstep.integrations.astraflow_raas import RaaSManager as RaaS3Manager``."""

import os
import time
from typing import Any

from astraflow.raas.server.manager import RaaS3Manager

from lockstep.core.errors import BadDataError, DeadlineError
from lockstep.engine import Replica, published

_TIMEOUT_SECONDS = 600.0
_POLL_SECONDS = 0.01


class RaaSManager(RaaS3Manager):
    """AstraFlow's ``RaaS3Manager``, whose engines load the directory of a version that the receiver holds, below
    $LOCKSTEP_ROOT, the receiver's ``--root``, under the ``model_id``. Which one it is, is what answers are stamped with: the
    version that was asked for, or a later one of the run. Its file is not written while engines load it.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if not os.environ.get("LOCKSTEP_ROOT"):
            raise BadDataError("$LOCKSTEP_ROOT is not set; it is the --root of the receiver on this host")
        self._wanted: "dict[str, int]" = {}
        self._loading: "dict[str, Replica]" = {}

    async def _do_weight_update(self, model_id: str, version: int, sender_endpoint: str) -> "dict[str, Any]":
        """One at a time for each model, by AstraFlow's lock."""
        self._wanted[model_id] = version
        try:
            result: "dict[str, Any]" = await super()._do_weight_update(model_id, version, sender_endpoint)
            if model_id in self._loading and self._weight_versions.get(model_id) == version:
                self._weight_versions[model_id] = self._loading[model_id].version
                self._get_engine(model_id).set_version(self._loading[model_id].version)
            return result
        finally:
            if model_id in self._loading:
                self._loading.pop(model_id).close()

    def _pull_weights_to_disk(self, sender_http_endpoint: str, model_id: str = "default") -> "dict[str, Any]":
        """What AstraFlow takes: the directory to load. DeadlineError: the receiver has not got the version in time."""
        path = os.path.join(os.environ["LOCKSTEP_ROOT"], model_id)
        run, version = sender_http_endpoint.partition(":")[0], self._wanted[model_id]
        begin = time.monotonic()
        replica = _wait_for(path, run, version)
        self._loading[model_id] = replica
        return {
            "ok": True,
            "shm_path": replica.directory,
            "use_lora": False,
            "version": replica.version,
            "pull_time": time.monotonic() - begin,
            "mode": "lockstep",
        }


def _wait_for(path: str, run: str, version: int) -> Replica:
    """``version`` of ``run``, or a later one, held."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while True:
        if published(path) is not None:
            replica = Replica(path)
            if run.startswith(replica.run) and replica.version >= version:
                return replica
            replica.close()
        if time.monotonic() >= deadline:
            raise DeadlineError(
                f"{path}: version {version} of run {run[:8]} was not published within {_TIMEOUT_SECONDS:g} s; the "
                "receiver's `lockstepctl status` says why"
            )
        time.sleep(_POLL_SECONDS)
