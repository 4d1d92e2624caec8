"""The SGLang plugin: entry point ``lockstep`` of ``sglang.srt.plugins``.

    LOCKSTEP_ENGINE_SOCKET=/run/raas-receiver/engine.sock LOCKSTEP_MODEL=actor python -m sglang.launch_server ...

Parameters are what SGLang's own loader makes of the trainer's tensors (_sglang_loading.py).
"""

import inspect
import logging
from typing import Any

from lockstep.core.errors import BadDataError
from lockstep.engine._environment import followed, follows
from lockstep.engine._follower import Follower
from lockstep.engine._sglang_loading import INITIALIZE, initialized, recorded

_LOAD_MODEL = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"
_MEMORY = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
_WRITERS = tuple(f"{_MEMORY}.update_weights_from_{source}" for source in ("disk", "tensor", "distributed", "ipc"))
_CHECK = f"{_MEMORY}.check_weights"
_END = f"{_MEMORY}.end_weight_update"
_STATE = "sglang.srt.managers.scheduler.Scheduler.get_internal_state"
_WEIGHTS = "weights"  # SGLang's tag of their memory
_log = logging.getLogger(__name__)
_follower: "Follower | None" = None


def register() -> None:
    """Follows from the moment the model is loaded, where $LOCKSTEP_ENGINE_SOCKET is set. Called in every process."""
    if not follows():
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(INITIALIZE, initialized, HookType.AROUND)
    HookRegistry.register(_LOAD_MODEL, _loaded, HookType.AFTER)
    HookRegistry.register(_STATE, _said, HookType.AFTER)
    HookRegistry.register(f"{_MEMORY}.release_memory_occupation", _released, HookType.BEFORE)
    HookRegistry.register(f"{_MEMORY}.resume_memory_occupation", _resumed, HookType.AFTER)
    for writer in _WRITERS:
        HookRegistry.register(writer, _written, HookType.AROUND)
    HookRegistry.register(_CHECK, _checked, HookType.AROUND)
    HookRegistry.register(_END, _ended, HookType.BEFORE)


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
    elif not followed().compare_only:
        _log.warning(
            "lockstep does not write the draft model, %s: what it does not share with the model stays as it was loaded",
            type(runner.model).__name__,
        )
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


def _ended(manager: Any, *_: Any) -> None:
    """SGLang computes from weights at the end of a session that loaded none (w_kc and w_vc, LongCat's scales). A follower has
    written what was computed."""
    session = manager._session
    if _follower is not None and session is not None and not followed().compare_only:
        manager._session = type(session)(selector=session.selector, loaded_weights=True)


def _new_follower(model: Any) -> Follower:
    from sglang.srt.runtime_context import get_exec, get_model, get_parallel

    where = followed()
    parallel = get_parallel()
    if parallel.dp_size != 1:
        raise BadDataError("data-parallel ranks of one server cannot be distinguished; start a server for each")
    if get_model().weight_cache_mode != "off":
        raise BadDataError("weights in SGLang's weight cache belong to its daemon; start with --weight-cache-mode off")
    if getattr(parallel, "dcp_replicate_q_proj", False):
        raise BadDataError("query projections that are gathered once (--dcp-replicate-q-proj) stay as they were loaded")
    if get_exec().moe.enable_eplb or get_exec().moe.ep_num_redundant_experts:
        raise BadDataError("experts that are balanced over ranks (EPLB) do not stay where they were loaded")
    return Follower(
        model,
        model=where.model,
        socket=where.socket,
        engine_name=where.engine_name,
        recorded=recorded(model),
        rank=parallel.pp_rank * parallel.tp_size + parallel.tp_rank,
        world=parallel.pp_size * parallel.tp_size,
        gate=False,
        check=lambda: _check_copies(model),
        compare_only=where.compare_only,
        server=where.server,
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
