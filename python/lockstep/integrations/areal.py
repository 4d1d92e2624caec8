"""AReaL's FSDP engines publish their shards, in place of a broadcast or a checkpoint for each step:

class Actor(Publishes, FSDPPPOActor):  # in a module that workers can import
    lockstep = Settings(model="actor")

areal.engine.FSDPPPOActor = Actor  # in the training script: what PPOTrainer makes
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from areal.engine.fsdp_engine import FSDPEngine

from lockstep.core.errors import BadDataError
from lockstep.core.served import EVERY, Receivers
from lockstep.export import Publisher


@dataclass(frozen=True)
class Settings:
    """Where weights go.

    Attributes:
        model: the model's name, ``[A-Za-z0-9._-]{1,128}``.
        socket: the agent's unix socket, the same path on every host of the trainer; rank 0 is on the agent's. None: as
            ``Publisher``.
        receivers: training and generation go on when the engines of these serve the version. As for
            ``Publisher.wait_served``, one for each server. None waits for none.
        timeout: seconds for that.
    """

    model: str = "actor"
    socket: "str | None" = None
    receivers: "Receivers | None" = EVERY
    timeout: float = 600.0


class Publishes(FSDPEngine):
    """An ``FSDPEngine`` of AReaL 1.0, or a base class beside one of its subclasses. ``update_weights`` publishes: every
    rank copies its own shards, rounded to the engine's ``dtype``. Nothing is gathered and nothing broadcast, whatever
    the configuration's ``weight_update_mode``.

    Versions and their labels are AReaL's. Rank 0 stops generation by AReaL's client before it publishes, as AReaL's own
    updates do, and lets it go on when all receivers serve the version. After an error generation stays stopped: a
    receiver may have paused a server in the middle of a write.
    """

    lockstep: Settings
    _publisher: "Publisher | None" = None

    def connect_engine(self, engine: Any, meta: Any) -> None:
        """As ``FSDPEngine``, without the group for broadcasts."""
        super().connect_engine(engine, replace(meta, type="lockstep"))

    def update_weights(self, meta: Any) -> None:
        """Publishes ``meta.version``, on every rank; rank 0 then waits for the receivers.

        Raises:
            BadDataError: the engine trains an adapter, or ``meta`` has no version.
            Error: as ``Publisher.from_fsdp`` and ``publish``.
            DeadlineError: on rank 0: receivers do not serve it; the text says which, and why.
        """
        if self.config.use_lora:
            raise BadDataError(
                "use_lora: this engine trains an adapter; publish it with lockstep.Publisher.from_adapter"
            )
        if not meta.version:
            raise BadDataError(f"version is {meta.version}: give meta.with_version(step), from 1, as PPOTrainer does")
        self._check_rollout_engine_connected()
        receivers = self.lockstep.receivers if torch.distributed.get_rank() == 0 else None
        try:
            if receivers is not None:
                self.rollout_engine.pause_generation()
            with self._offload_aware_context():
                self._opened().publish(meta.version, version=meta.version)
            if receivers is not None:
                self._opened().wait_served(version=meta.version, receivers=receivers, timeout=self.lockstep.timeout)
        finally:
            torch.distributed.barrier(group=self.cpu_group)
        if receivers is not None:
            self.rollout_engine.continue_generation()

    def destroy(self) -> None:
        """As ``FSDPEngine``; the agent serves the last version on."""
        if self._publisher is not None:
            self._publisher.close()
        super().destroy()

    def _opened(self) -> Publisher:
        if self._publisher is None:
            dtype = getattr(torch, self.config.dtype)
            settings = self.lockstep
            self._publisher = Publisher.from_fsdp(self.model, dtype=dtype, socket=settings.socket, model=settings.model)
        return self._publisher
