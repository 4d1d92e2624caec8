"""AstraFlow's trainer publishes: in astraflow/train_worker/trainer/ppo_trainer.py ``WeightManager`` is imported from here."""

import os
from typing import Any, Iterable, Tuple

from lockstep.core.dtypes import safetensors_dtype
from lockstep.core.errors import BadDataError, StateError
from lockstep.core.tensors import TensorMeta
from lockstep.export import Publisher


class WeightManager:
    """AstraFlow's ``WeightManager``, as its trainer uses it on every rank. Versions and their labels are AstraFlow's.

    FSDP's ranks publish their shards and gather nothing; of Megatron's, rank 0 publishes what they gather. The agent is
    the one of rank 0's host, on $LOCKSTEP_EXPORT_SOCKET where that is set, and the model's name $LOCKSTEP_MODEL, for which AstraFlow's
    ``model_id`` is best, "default" without one.
    """

    def __init__(self, config: Any = None) -> None:
        """``config`` is AstraFlow's, of its own transfer."""
        self._publisher: "Publisher | None" = None
        self._streams = False

    def initialize(
        self,
        named_params: "Iterable[Tuple[str, Any]]",
        local_rank: int,
        global_rank: int,
        lora_config: "dict[str, Any] | None" = None,
        megatron_metadata: "dict[str, Any] | None" = None,
        megatron_hf_meta: "list[Tuple[str, Tuple[list[int], str]]] | None" = None,
        dp_replicate_rank: int = 0,
    ) -> None:
        """Opens the model. BadDataError: it is an adapter, or shards without HuggingFace names; else as
        ``Publisher``."""
        if lora_config is not None or megatron_metadata is not None:
            raise BadDataError(
                "only whole models under HuggingFace names are published: no adapter, no Megatron shards"
            )
        model = os.environ.get("LOCKSTEP_MODEL") or "default"
        self._streams = megatron_hf_meta is not None
        if megatron_hf_meta is None:
            self._publisher = Publisher.from_tensors(_once(named_params), model=model)
        else:
            layout = [
                TensorMeta(name, safetensors_dtype(name, dtype), tuple(shape))
                for name, (shape, dtype) in megatron_hf_meta
            ]
            self._publisher = Publisher.from_stream(layout, model=model, rank=global_rank)

    def offload(
        self, named_params: "Iterable[Tuple[str, Any]]", version: int, rank: int, world_size: int
    ) -> "dict[str, float]":
        """Publishes ``version``: Megatron's tensors from ``named_params``, FSDP's as they are now where they were when the
        model was opened. No metrics."""
        self._opened().publish(version, tensors=named_params if self._streams else None, version=version)
        return {}

    def wait_delta_ready(self, timeout: float = 60.0) -> None:
        """Nothing: receivers get a version while it is compared."""

    def get_sender_endpoint(self) -> str:
        """The run, in the form of an address, which AstraFlow hands to its rollout services."""
        return f"{self._opened().run}:0"

    def shutdown(self) -> None:
        """Leaves the agent, which serves the last version on."""
        if self._publisher is not None:
            self._publisher.close()

    def _opened(self) -> Publisher:
        if self._publisher is None:
            raise StateError("the model is not open: call initialize first, as AstraFlow's trainer does")
        return self._publisher


def _once(named_params: "Iterable[Tuple[str, Any]]") -> "dict[str, Any]":
    """Without second names: checkpoints of models that tie their head to the embedding have one."""
    names: "dict[int, Tuple[str, Any]]" = {}
    for name, parameter in named_params:
        names.setdefault(id(parameter), (name, parameter))
    return dict(names.values())
