"""The SGLang plugin: entry point ``lockstep`` of ``sglang.srt.plugins``.

    LOCKSTEP_ENGINE_SOCKET=/run/raas-receiver/engine.sock LOCKSTEP_MODEL=actor python -m sglang.launch_server ...

Written against the sources of SGLang 0.5.23; where that differs from what is met, it refuses.
"""

import inspect
import logging
from typing import Any

from lockstep.core.errors import BadDataError
from lockstep.engine._environment import followed, follows
from lockstep.engine._follower import Follower
from lockstep.engine._served import Served

_LOAD_MODEL = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"
_MEMORY = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
_WRITERS = tuple(f"{_MEMORY}.update_weights_from_{source}" for source in ("disk", "tensor", "distributed", "ipc"))
_CHECK = f"{_MEMORY}.check_weights"
_STATE = "sglang.srt.managers.scheduler.Scheduler.get_internal_state"
_WEIGHTS = "weights"  # SGLang's tag of their memory
_log = logging.getLogger(__name__)
_follower: "Follower | None" = None


def register() -> None:
    """Follows from the moment the model is loaded, where $LOCKSTEP_ENGINE_SOCKET is set. Called in every process."""
    if not follows():
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_LOAD_MODEL, _loaded, HookType.AFTER)
    HookRegistry.register(_STATE, _said, HookType.AFTER)
    HookRegistry.register(f"{_MEMORY}.release_memory_occupation", _released, HookType.BEFORE)
    HookRegistry.register(f"{_MEMORY}.resume_memory_occupation", _resumed, HookType.AFTER)
    for writer in _WRITERS:
        HookRegistry.register(writer, _written, HookType.AROUND)
    HookRegistry.register(_CHECK, _checked, HookType.AROUND)


def follow(model: Any) -> Follower:
    """The follower of this process' model, made at the first call. BadDataError: its parameters cannot be
    written, and why."""
    global _follower
    if _follower is None:
        _follower = _new_follower(model)
        _log.info("lockstep follows %s", followed().model)
    return _follower


def _loaded(result: Any, runner: Any, *_: Any, **__: Any) -> Any:
    if not runner.is_draft_worker:
        follow(runner.model)
    return result


def _said(result: Any, *_: Any, **__: Any) -> Any:
    """Adds the incarnation to /server_info: the receiver's driver asks which engine's server it pauses."""
    if _follower is not None:
        result.internal_state["lockstep"] = _follower.incarnation
    return result


def _released(_: Any, request: Any) -> None:
    """The memory saver takes what has its tag; no tag is every tag."""
    if _follower is not None and (not request.tags or _WEIGHTS in request.tags):
        from sglang.srt.runtime_context import get_exec

        _follower.sleep(kept=bool(get_exec().features.enable_weights_cpu_backup))


def _resumed(result: Any, _: Any, request: Any) -> Any:
    if _follower is not None and (not request.tags or _WEIGHTS in request.tags):
        _follower.wake()
    return result


def _written(write: Any, *arguments: Any, **options: Any) -> Any:
    """What SGLang writes itself is no version that the receiver knows: all is written again afterwards."""
    if _follower is None:
        return write(*arguments, **options)
    began = _follower.sleep()
    try:
        return write(*arguments, **options)
    finally:
        if began:  # else the weights were released, and are so still
            _follower.wake()


def _checked(check: Any, manager: Any, request: Any) -> Any:
    """One of its actions gives all weights random values."""
    return _written(check, manager, request) if request.action == "reset_tensors" else check(manager, request)


def _new_follower(model: Any) -> Follower:
    from sglang.srt.runtime_context import get_exec, get_model, get_parallel

    where = followed()
    parallel, config = get_parallel(), model.config
    if parallel.attn_tp_size != parallel.tp_size or parallel.moe_dp_size != 1:
        raise BadDataError("attention or experts that are shared over other ranks than the tensor group's")
    if parallel.dp_size != 1:
        raise BadDataError("data-parallel ranks of one server cannot be distinguished; start a server for each")
    if get_model().weight_cache_mode != "off":
        raise BadDataError("weights in SGLang's weight cache belong to its daemon; start with --weight-cache-mode off")
    if get_exec().moe.enable_eplb or get_exec().moe.ep_num_redundant_experts:
        raise BadDataError("experts that are balanced over ranks (EPLB) do not stay where they were loaded")
    fused = _check_experts(model)
    return Follower(
        model,
        model=where.model,
        socket=where.socket,
        engine_name=where.engine_name,
        engine="sglang",
        family=config.model_type,
        rank=parallel.pp_rank * parallel.tp_size + parallel.tp_rank,
        world=parallel.pp_size * parallel.tp_size,
        tensor_parallel=(parallel.tp_rank, parallel.tp_size),
        expert_parallel=(parallel.moe_ep_rank, parallel.moe_ep_size),
        expert_tensor_parallel=(parallel.moe_tp_rank, parallel.moe_tp_size),
        key_value_heads=getattr(config, "num_key_value_heads", 0),
        fused_shared_experts=fused,
        gate=False,
        check=lambda: _check_copies(model),
        compare_only=where.compare_only,
        server=where.server,
        after_write=_compute_of(model),
    )


def _check_copies(model: Any) -> None:
    """BadDataError: the model keeps something beside its weights that a write leaves as it is, in SGLang's words."""
    try:
        from sglang.srt.model_executor.model_runner_components import weight_updater
    except ImportError:
        return  # a release that keeps nothing, or does not know
    check = getattr(weight_updater, "_unsupported_derived_weight_cache_error", None)
    if check is None:
        return
    reason = check(model) if inspect.signature(check).parameters else check()  # not all releases look at the model
    if reason is not None:
        raise BadDataError(reason)


def _check_experts(model: Any) -> bool:
    """Whether shared experts are in the stacks. BadDataError: the stacks are not as they were loaded, which their
    shapes do not show."""
    fused = False
    for name, module in model.named_modules():
        fused = fused or getattr(module, "num_fused_shared_experts", 0) > 0
        if not hasattr(module, "w13_weight"):
            continue
        method = module.quant_method
        backend = method.get_moe_runner_backend(module)
        plain = backend is not None and (backend.is_triton() or backend.is_deep_gemm())
        if not plain or method.load_up_proj_weight_first or method.w13_swiglu_interleaved:
            raise BadDataError(
                f"{name}: {backend} has a layout of its own for experts; start with --moe-runner-backend triton and "
                "without SGLANG_OPT_FUSE_SWIGLU_INTERLEAVED, or take versions from the directory"
            )
    return fused


def _compute_of(model: Any) -> Any:
    """What the model computes from its weights (MLA's w_kc and w_vc), again and in place."""
    if not hasattr(model, "post_load_weights"):
        return None

    def compute(_: Served) -> None:
        import torch

        with torch.inference_mode():
            model.post_load_weights()

    return compute
