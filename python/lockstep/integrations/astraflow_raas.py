"""AstraFlow's rollout service loads what the receiver on its host has proved: in astraflow/raas/server/__main__.py,
``from lockstep.integrations.astraflow_raas import RaaSManager as RaaS3Manager``."""

import os
import shutil
import tempfile
import time
from typing import Any

from astraflow.raas.server.manager import RaaS3Manager

from lockstep.core import arguments
from lockstep.engine import Replica
from lockstep.integrations._replicas import Awaited

_TIMEOUT_SECONDS = 600.0


class RaaSManager(RaaS3Manager):
    """AstraFlow's ``RaaS3Manager``. Its engines load a version that the receiver holds under the ``model_id``, below
    $LOCKSTEP_ROOT where its ``--root`` is not the usual one. That is the version that was asked for, or a later one of
    the run, and answers are stamped with it. While engines load it, its file is not written and has a directory of its
    own: the receiver removes the directory of a version after two later ones.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._wanted: "dict[str, int]" = {}
        self._loading: "dict[str, _Loading]" = {}

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
        run, version = sender_http_endpoint.partition(":")[0], self._wanted[model_id]
        begin = time.monotonic()
        loading = _Loading(arguments.replica_root(None), model_id, run, version)
        self._loading[model_id] = loading
        return {
            "ok": True,
            "shm_path": loading.directory,
            "use_lora": False,
            "version": loading.version,
            "pull_time": time.monotonic() - begin,
            "mode": "lockstep",
        }


class _Loading:
    """``version`` of ``run`` or a later one, held in ``directory``, which is there until it is closed. DeadlineError: it did
    not come in time."""

    def __init__(self, root: str, model_id: str, run: str, version: int) -> None:
        def wanted(replica: Replica) -> bool:
            return run.startswith(replica.run) and replica.version >= version

        awaited = Awaited(os.path.join(root, model_id), f"version {version} of run {run[:8]}", wanted, _TIMEOUT_SECONDS)
        self.directory = tempfile.mkdtemp(prefix=".loading-", dir=root)
        try:
            while not self._links(awaited.wait()):
                pass  # it was removed meanwhile: there is a later one
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    def _links(self, replica: Replica) -> bool:
        self._replica, self.version = replica, replica.version
        try:
            shutil.copytree(replica.directory, self.directory, copy_function=os.link, dirs_exist_ok=True)
        except (shutil.Error, FileNotFoundError):
            replica.close()
            shutil.rmtree(self.directory, ignore_errors=True)
            return False
        return True

    def close(self) -> None:
        self._replica.close()
        shutil.rmtree(self.directory)
