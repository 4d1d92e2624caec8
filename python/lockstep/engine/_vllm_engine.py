"""LockstepWeightTransferEngine: a vLLM worker whose live parameters follow a receiver.

Its parameters are what vLLM's own loader makes of the trainer's tensors (_vllm_loading.py).
"""

import dataclasses
import re
from typing import Any

from vllm.distributed.parallel_state import get_world_group
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from lockstep.core.errors import BadDataError, Error
from lockstep.engine._environment import followed, follows
from lockstep.engine._follower import Follower
from lockstep.engine._served import Served
from lockstep.engine._vllm_loading import recorded

# What vLLM adds to it for each data-parallel replica under Ray.
_OF_REPLICA = re.compile(r"_dp\d+$")
# What vLLM calls of its model runner at the end of its own reload_weights: it drops what it has of other weights, such as a
# draft's quantised copy of the head, adapters, and what encoders made of images.
_REFRESHES = ("reset_lora_state", "reset_encoder_cache", "reset_mm_cache")


@dataclasses.dataclass
class LockstepInitInfo(WeightTransferInitInfo):
    """Body of /init_weight_transfer_engine: the receiver's engine socket, the model's name and this engine's,
    whether its memory is only compared, because it loads the receiver's directory, and its server's URL, where the
    receiver is not configured with it."""

    socket: str
    model: str
    engine_name: str = "default"
    compare_only: bool = False
    server: str = ""


@dataclasses.dataclass
class LockstepUpdateInfo(WeightTransferUpdateInfo):
    """Body of /update_weights: the version that must be there by now. It transfers nothing.

    While workers wait for it, their server answers no request, not even a receiver's to pause. So a version that has
    not been written yet cannot come meanwhile.
    """

    version: int
    run: str = ""  # 32 hex digits; empty for any
    timeout_s: float = 0.0


class LockstepWeightTransferEngine(WeightTransferEngine[LockstepInitInfo, LockstepUpdateInfo]):
    """The receiver writes weights while its driver has the server paused; these calls only start and check that. Where
    $LOCKSTEP_ENGINE_SOCKET is set, the constructor starts it, and no call is needed.

    Attributes:
        model_runner: the worker's. The plugin sets it once the model is loaded; without it, no version is served.
    """

    init_info_cls = LockstepInitInfo
    update_info_cls = LockstepUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.follower: "Follower | None" = None
        self.model_runner: Any = None
        if follows():
            self.init_transfer_engine(LockstepInitInfo(**followed()._asdict()))

    def init_transfer_engine(self, init_info: LockstepInitInfo) -> None:
        """Starts to follow; again: with the new names. ValueError: these parameters cannot be written, and why."""
        self.shutdown()
        parallel = self.parallel_config
        try:
            _check_memory(self.vllm_config.load_config.load_format)
            _check_experts(parallel)
            # Replicas of dense models know only their own number: each is a group of its own.
            alone, replica = parallel.data_parallel_size == 1, parallel.data_parallel_index
            own = recorded(self.model)
            world = parallel.data_parallel_size * parallel.world_size
            group = get_world_group() if world > 1 else None
            self.follower = Follower(
                own.modules(),
                model=init_info.model,
                socket=init_info.socket,
                engine_name=init_info.engine_name,
                group=replica if alone else 0,
                incarnation=_incarnation(self.vllm_config),
                recorded=own,
                rank=parallel.rank + (0 if alone else replica * parallel.world_size),
                world=world,
                # Dense replicas are groups of their own, of which each has its part of this one.
                process_group=group.cpu_group if group is not None and group.world_size == world else None,
                gate=False,
                after_write=self._refresh,
                compare_only=init_info.compare_only,
                server=init_info.server,
            )
        except Error as error:
            raise ValueError(str(error)) from error

    def _refresh(self, _: Served) -> None:
        if self.model_runner is None:
            raise BadDataError("vLLM's model runner is not known; it is once vLLM's executor has loaded the model")
        for name in _REFRESHES:
            refresh = getattr(self.model_runner, name, None)
            if refresh is not None:
                refresh()

    def start_weight_update(self, *_: Any, **__: Any) -> None:
        """Nothing: parameters are written in place."""

    def receive_weights(self, update_info: LockstepUpdateInfo, *_: Any, **__: Any) -> None:
        """RuntimeError: the version is not there in time; what is, and why."""
        if self.follower is None:
            raise RuntimeError("lockstep follows nothing yet; call /init_weight_transfer_engine")
        try:
            served = self.follower.wait_for(update_info.version, update_info.timeout_s)
        except Error as error:
            raise RuntimeError(str(error)) from error
        if update_info.version != served.version or update_info.run not in ("", served.run):
            raise RuntimeError(f"version {update_info.version} {update_info.run} was asked for, and {served} is there")

    def finish_weight_update(self, *_: Any, **__: Any) -> None:
        """Nothing, as above."""

    def shutdown(self) -> None:
        """Follows no more."""
        if self.follower is not None:
            self.follower.close()
            self.follower = None


def _incarnation(config: Any) -> "str | None":
    """What the workers of one server have in common. None: each made its own configuration, as torchrun's do."""
    alone = config.parallel_config.distributed_executor_backend == "external_launcher"
    return None if alone else _OF_REPLICA.sub("", str(config.instance_id))


def _check_memory(load_format: str) -> None:
    """BadDataError: other servers read this memory, too."""
    if load_format == "ipc_cache":
        raise BadDataError(
            "weights of --load-format ipc_cache belong to vLLM's weight cache, which shares them with other servers; start "
            "with another --load-format"
        )


def _check_experts(parallel: Any) -> None:
    """BadDataError: experts do not stay where they were loaded."""
    if parallel.enable_eplb:
        raise BadDataError("experts that are balanced over ranks (--enable-eplb) do not stay where they were loaded")
