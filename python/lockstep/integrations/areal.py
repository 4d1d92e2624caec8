"""AReaL's FSDP engines publish their shards, in place of a broadcast or a checkpoint for each step:

class Actor(Publishes, FSDPPPOActor):  # in a module that workers can import
    lockstep = Settings(socket="/run/trainer-agent/export.sock", model="actor", receivers=2)

areal.engine.FSDPPPOActor = Actor  # in the training script: what PPOTrainer makes
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from areal.engine.fsdp_engine import FSDPEngine

from lockstep.core.errors import BadDataError
from lockstep.core.served import Receivers
from lockstep.export import Exporter


@dataclass(frozen=True)
class Settings:
    """Where weights go.

    Attributes:
        socket: the agent's unix socket, the same path on every host of the trainer; rank 0 is on the agent's.
        model: the model's name, ``[A-Za-z0-9._-]{1,128}``.
        receivers: how many receivers' engines must serve a version before training goes on, or the names of those that
            must; None waits for none.
        timeout: seconds for that.
    """

    socket: str
    model: str = "actor"
    receivers: "Receivers | None" = 1
    timeout: float = 600.0


class Publishes(FSDPEngine):
    """An ``FSDPEngine`` of AReaL 1.0, or with one of its subclasses a base of that one's, whose ``update_weights``
    publishes: every rank copies its own shards, rounded to the engine's ``dtype``. Nothing is gathered and nothing
    broadcast, whatever the configuration's ``weight_update_mode``.

    Versions and their labels are AReaL's. While receivers write, AReaL's client has stopped generation, as it has for
    AReaL's own updates, so that no request spans two versions.
    """

    lockstep: Settings
    _exporter: "Exporter | None" = None

    def connect_engine(self, engine: Any, meta: Any) -> None:
        """As ``FSDPEngine``, without the group for broadcasts."""
        super().connect_engine(engine, replace(meta, type="lockstep"))

    def update_weights(self, meta: Any) -> None:
        """Publishes ``meta.version``, on every rank; rank 0 then waits for the receivers.

        Raises:
            BadDataError: the engine trains an adapter, or ``meta`` has no version.
            Error: as ``Exporter`` and its ``publish``.
            DeadlineError: on rank 0: receivers do not serve it; the text says which, and why.
        """
        if self.config.use_lora:
            raise BadDataError(
                "use_lora: this engine trains an adapter; publish it with lockstep.Exporter.from_adapter"
            )
        if not meta.version:
            raise BadDataError(f"version is {meta.version}: give meta.with_version(step), from 1, as PPOTrainer does")
        self._check_rollout_engine_connected()
        with self._offload_aware_context():
            published = self._opened().publish(meta.version, label=meta.version)
        if published and torch.distributed.get_rank() == 0:
            self._wait_served(meta.version)
        torch.distributed.barrier(group=self.cpu_group)

    def destroy(self) -> None:
        """As ``FSDPEngine``; the agent serves the last version on."""
        if self._exporter is not None:
            self._exporter.close()
        super().destroy()

    def _opened(self) -> Exporter:
        if self._exporter is None:
            dtype = getattr(torch, self.config.dtype)
            settings = self.lockstep
            self._exporter = Exporter.from_fsdp(self.model, dtype=dtype, socket=settings.socket, model=settings.model)
        return self._exporter

    def _wait_served(self, version: int) -> None:
        receivers = self.lockstep.receivers
        if receivers is None:
            return
        self.rollout_engine.pause_generation()
        try:
            self._opened().wait_served(version=version, receivers=receivers, timeout=self.lockstep.timeout)
        finally:
            self.rollout_engine.continue_generation()
