"""The vLLM plugin: entry point ``lockstep`` of ``vllm.general_plugins``.

By the environment, without a call or an option, for workers of a server that a framework starts:

    LOCKSTEP_ENGINE_SOCKET=/run/raas-receiver/engine.sock LOCKSTEP_MODEL=actor VLLM_SERVER_DEV_MODE=1 vllm serve MODEL

Or as one of vLLM's backends, which a request initialises:

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --weight-transfer-config '{"backend": "lockstep"}'
    POST /init_weight_transfer_engine {"init_info": {"socket": "/run/raas-receiver/engine.sock", "model": "actor"}}
"""

import logging
from types import SimpleNamespace
from typing import Any

from lockstep.core.errors import BadDataError
from lockstep.engine._environment import follows

NAME = "lockstep"
_WEIGHTS = "weights"  # vLLM's tag of their memory
_NOBODY = SimpleNamespace(sleep=lambda **_: None, wake=lambda: None, incarnation=None)


def register() -> None:
    """Makes the backend "lockstep" known, and every worker's where $LOCKSTEP_ENGINE_SOCKET is set; called in every
    process of vLLM, any number of times."""
    try:
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory as factory
    except ImportError as error:
        logging.getLogger(__name__).warning("this vLLM has no weight transfer engines, so none of lockstep: %s", error)
        return
    try:
        factory.register_engine(NAME, "lockstep.engine._vllm_engine", "LockstepWeightTransferEngine")
    except ValueError:
        pass  # it is registered
    from vllm.v1.worker.worker_base import WorkerWrapperBase as wrapper

    # Methods that it has not: it hands on to its worker. All that others do to a worker's weights comes by here.
    wrapper.sleep, wrapper.wake_up, wrapper.discard, wrapper.reload_weights = (
        _sleep,
        _wake_up,
        _discard,
        _reload_weights,
    )
    wrapper.load_model, wrapper.lockstep_incarnation = _load_model, _incarnation


def _load_model(wrapper: Any, *arguments: Any, **options: Any) -> Any:
    """Gives the backend what it needs of the worker."""
    if follows():
        _choose_backend(wrapper.vllm_config)
    chosen = wrapper.vllm_config.weight_transfer_config
    ours = chosen is not None and chosen.backend == NAME
    if not ours:
        return wrapper.worker.load_model(*arguments, **options)
    from lockstep.engine._vllm_loading import watched

    _leave_weights_on_cpus()
    with watched():
        result = wrapper.worker.load_model(*arguments, **options)
    wrapper.worker.weight_transfer_engine.model_runner = wrapper.worker.model_runner
    return result


def _leave_weights_on_cpus() -> None:
    """Linear layers compute from their weights, as on GPUs. vLLM's own CPU kernels keep packed copies, which a write
    leaves as they are, and drop the weights."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    import torch
    from vllm.model_executor.layers import utils

    packs = utils.dispatch_cpu_unquantized_gemm

    def dispatch(layer: Any, remove_weight: bool) -> None:
        if layer.weight.ndim == 2:
            layer.cpu_linear = torch.nn.functional.linear
        else:  # a convolution's; the engine refuses those that are packed
            packs(layer, remove_weight)

    utils.dispatch_cpu_unquantized_gemm = dispatch


def _choose_backend(config: Any) -> None:
    """As --weight-transfer-config does. BadDataError: that names another backend."""
    from vllm.config import WeightTransferConfig

    if config.weight_transfer_config is None:
        config.weight_transfer_config = WeightTransferConfig(backend=NAME)
    if config.weight_transfer_config.backend != NAME:
        raise BadDataError(
            f"$LOCKSTEP_ENGINE_SOCKET is set, and --weight-transfer-config has {config.weight_transfer_config.backend}: "
            "weights come by one of them; leave out the other"
        )


def _sleep(wrapper: Any, level: int = 1) -> Any:
    """Level 1 keeps weights in the host's memory, level 2 does not. After a failure the rank stays asleep: it is
    unknown which of its memory is there."""
    _follower_of(wrapper).sleep(kept=level == 1)
    return wrapper.worker.sleep(level)


def _wake_up(wrapper: Any, tags: "list[str] | None" = None) -> Any:
    result = wrapper.worker.wake_up(tags)
    if tags is None or _WEIGHTS in tags:
        _follower_of(wrapper).wake()
    return result


def _discard(wrapper: Any, tags: "tuple[str, ...] | str") -> Any:
    if _WEIGHTS in ((tags,) if isinstance(tags, str) else tags):
        _follower_of(wrapper).sleep()
    return wrapper.worker.discard(tags)


def _reload_weights(wrapper: Any, *arguments: Any, **options: Any) -> Any:
    """What another writes here is no version that the receiver knows: all is written again afterwards."""
    follower = _follower_of(wrapper)
    began = follower.sleep()
    try:
        return wrapper.worker.reload_weights(*arguments, **options)
    finally:
        if began:  # else the memory was away, and is so still
            follower.wake()


def _incarnation(wrapper: Any) -> Any:
    """The receiver's driver asks by /collective_rpc which engine's server it pauses."""
    return _follower_of(wrapper).incarnation


def _follower_of(wrapper: Any) -> Any:
    """What a worker follows by; where it does not, what does nothing."""
    return getattr(getattr(wrapper.worker, "weight_transfer_engine", None), "follower", None) or _NOBODY
