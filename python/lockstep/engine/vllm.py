"""The vLLM plugin: entry point ``lockstep`` of ``vllm.general_plugins``.

VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --weight-transfer-config '{"backend": "lockstep"}'
POST /init_weight_transfer_engine {"init_info": {"socket": "/run/raas-receiver/engine.sock", "model": "actor"}}
"""

import logging

NAME = "lockstep"


def register() -> None:
    """Makes the backend "lockstep" known; called in every process of vLLM, any number of times."""
    try:
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory as factory
    except ImportError as error:
        logging.getLogger(__name__).warning("this vLLM has no weight transfer engines, so none of lockstep: %s", error)
        return
    try:
        factory.register_engine(NAME, "lockstep.engine._vllm_engine", "LockstepWeightTransferEngine")
    except ValueError:
        pass  # it is registered
