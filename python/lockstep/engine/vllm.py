"""The vLLM plugin: entry point ``lockstep`` of ``vllm.general_plugins``.

By the environment, without a call or an option, for workers whose server is started deep inside of a framework:

    LOCKSTEP_ENGINE_SOCKET=/run/raas-receiver/engine.sock LOCKSTEP_MODEL=actor VLLM_SERVER_DEV_MODE=1 vllm serve MODEL

Or as one of vLLM's backends, which somebody initialises:

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --weight-transfer-config '{"backend": "lockstep"}'
    POST /init_weight_transfer_engine {"init_info": {"socket": "/run/raas-receiver/engine.sock", "model": "actor"}}
"""

import logging
from typing import Any

from lockstep.core.errors import BadDataError
from lockstep.engine._environment import follows

NAME = "lockstep"


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
    if follows():
        from vllm.v1.worker.worker_base import WorkerWrapperBase

        WorkerWrapperBase.load_model = _load_model  # which it has not: it hands on to its worker


def _load_model(wrapper: Any, *arguments: Any, **options: Any) -> Any:
    """What a worker does after --weight-transfer-config. BadDataError: that names another backend."""
    from vllm.config import WeightTransferConfig

    config = wrapper.vllm_config
    if config.weight_transfer_config is None:
        config.weight_transfer_config = WeightTransferConfig(backend=NAME)
    if config.weight_transfer_config.backend != NAME:
        raise BadDataError(
            f"$LOCKSTEP_ENGINE_SOCKET is set, and --weight-transfer-config has {config.weight_transfer_config.backend}: "
            "weights come by one of them; leave out the other"
        )
    return wrapper.worker.load_model(*arguments, **options)
