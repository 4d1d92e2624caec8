"""LockstepWeightTransferEngine: a vLLM worker whose live parameters follow a receiver.

Written against the sources of vLLM 0.33.0; where that differs from what is met, it refuses.
"""

import dataclasses
import re
from typing import Any

from vllm.distributed.parallel_state import get_tp_group
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from lockstep.core.errors import BadDataError, Error
from lockstep.engine._environment import followed, follows
from lockstep.engine._follower import Follower
from lockstep.engine._served import Served

# Of MLA layers: views of kv_b_proj, in the form that its kernels want.
_VIEWS = ("W_UV", "W_UK_T")
# What vLLM adds to it for each data-parallel replica under Ray.
_OF_REPLICA = re.compile(r"_dp\d+$")
_PLAIN_METHODS = frozenset({"UnquantizedLinearMethod", "UnquantizedEmbeddingMethod", "UnquantizedFusedMoEMethod"})
# What vLLM calls of its model runner at the end of its own reload_weights: it drops what it has of other weights, such as a
# draft's quantised copy of the head, adapters, and what encoders made of images.
_REFRESHES = ("reset_lora_state", "reset_encoder_cache", "reset_mm_cache")
# Expert kernels that take the stacks as they were loaded.
_PLAIN_EXPERT_BACKENDS = frozenset({"TRITON", "BATCHED_TRITON"})


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
        config, parallel, tensor = self.model_config.hf_text_config, self.parallel_config, get_tp_group()
        try:
            _check_memory(self.vllm_config.load_config.load_format)
            expert, expert_tensor = _expert_groups(self.model, parallel)
            # Replicas of dense models know only their own number: each is an engine of its own.
            alone, replica = parallel.data_parallel_size == 1, parallel.data_parallel_index
            self.follower = Follower(
                self.model,
                model=init_info.model,
                socket=init_info.socket,
                engine_name=f"{init_info.engine_name}-{replica}" if alone and replica > 0 else init_info.engine_name,
                incarnation=_incarnation(self.vllm_config),
                engine="vllm",
                family=config.model_type,
                rank=parallel.rank + (0 if alone else replica * parallel.world_size),
                world=parallel.data_parallel_size * parallel.world_size,
                tensor_parallel=(tensor.rank_in_group, tensor.world_size),
                expert_parallel=expert,
                expert_tensor_parallel=expert_tensor,
                key_value_heads=getattr(config, "num_key_value_heads", 0),
                leave_out=_VIEWS,
                gate=False,
                after_write=self._refresh,
                check=lambda: _check_as_loaded(self.model),
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


def _check_as_loaded(model: Any) -> None:
    """BadDataError names a module that computes something else from its parameters, which would not follow them."""
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if method is not None and type(method).__name__ not in _PLAIN_METHODS:
            raise BadDataError(f"{name} has a {type(method).__name__}: its weights are not those of the checkpoint")
        if hasattr(module, "kv_b_proj") and hasattr(module, "W_UV"):
            memory = module.kv_b_proj.weight.untyped_storage().data_ptr()
            copies = [view for view in _VIEWS if getattr(module, view).untyped_storage().data_ptr() != memory]
            if copies or getattr(module, "W_UK_T_dcp_qrep", None) is not None:
                raise BadDataError(f"{name} keeps copies of kv_b_proj, which would stay as they are")
        if getattr(module, "_combined_gate_weight", None) is not None:
            raise BadDataError(f"{name} keeps a copy of its gates, which would stay as it is")
        if hasattr(module, "_cpu_unpacked_conv_weight"):
            raise BadDataError(f"{name} has its weights packed for a CPU: they are not those of the checkpoint")


def _expert_groups(model: Any, parallel: Any) -> "tuple[tuple[int, int], tuple[int, int]]":
    """(rank, size) of the expert group and of the group within experts, as vLLM's own layers have them. BadDataError:
    experts are not where, or as, they were loaded."""
    groups = set()
    for name, module in model.named_modules():
        if not hasattr(module, "w13_weight"):
            continue
        backend = getattr(getattr(module.quant_method, "unquantized_backend", None), "name", "unknown")
        if backend not in _PLAIN_EXPERT_BACKENDS:
            raise BadDataError(f"{name}: backend {backend} has a layout of its own; start with --moe-backend triton")
        own = module.moe_config.moe_parallel_config
        if own.enable_eplb or parallel.expert_placement_strategy != "linear":
            raise BadDataError(f"{name}: experts that are balanced over ranks or placed round-robin cannot be written")
        groups.add(((own.ep_rank, own.ep_size), (own.tp_rank, own.tp_size)))
    if len(groups) > 1:
        raise BadDataError(f"layers whose experts are shared in different ways: {sorted(groups)}")
    return groups.pop() if groups else ((0, 1), (0, 1))
